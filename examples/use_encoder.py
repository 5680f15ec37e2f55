"""Train an encoder on digits, compute features, and save the encoder.

python examples/use_encoder.py [FOLDER]
"""

import sys
from pathlib import Path

from sklearn.datasets import load_digits

import hypersphere_jax as hj


def main(folder: Path, epochs: int = 10) -> None:
    digits = load_digits()
    images = (digits.images * 15).astype("uint8")  # [1797, 8, 8]
    labels = digits.target  # [1797]

    config = hj.PretrainConfig(name="digits", runs_dir=str(folder), epochs=epochs)
    run = hj.train(config, images=images[:1400], labels=labels[:1400])

    encoder = run.encoder  # or hj.load(run.folder), in another process
    print(encoder.layers)
    z = encoder(images)  # float32 [1797, 32], unit norm
    h = encoder(images, layer="backbone")  # float32 [1797, 512]
    print(z.shape, h.shape)

    encoder.save(folder / "encoder")  # weights and config: no optimizer, no run
    again = hj.load(folder / "encoder")
    print("nearest neighbours of the first digit:", labels[(again(images) @ z[0]).argsort()[-6:-1]])
    split = z[:1400], labels[:1400], z[1400:], labels[1400:]
    print(f"5-NN: {hj.knn_probe(*split)['top1']:.1f}%")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples"))

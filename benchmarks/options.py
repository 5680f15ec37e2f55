"""The options of `bench`, a function for each part: their help needs nothing else."""

from pathlib import Path
from typing import Literal

from hypersphere_jax.configs import DataConfig

Model = Literal["small_alexnet", "small_cnn", "resnet18", "resnet34", "resnet50"]
LOSSES = ("uniform", "contrastive", "dcl", "nt_xent", "balanced", "info_nce", "sliced_wasserstein")


def start(data_dir: str | None = None, rounds: int = 3) -> None:
    """Time the start of runs, from the command to the first step, with empty and full caches.

    Of the digits, and of CIFAR-10 (SmallAlexNet and ResNet-18) where it is told where that is. Each
    is a process of its own.

    Args:
        data_dir: CIFAR-10: the folder of train.zip and test.zip; None: digits alone.
        rounds: Runs of each kind.
    """
    from benchmarks import start as part

    part.start(data_dir, rounds)


def step(
    model: Model = "small_alexnet",
    dtype: Literal["float32", "bfloat16"] = "float32",
    batch_size: int = 64,
    image_size: int = 32,
    recipe: str = "stl10",
    width: float = 1.0,
    rounds: int = 5,
) -> None:
    """Time the align+uniform step of a network (one device), part by part, beside its roofline.

    All forms take turns in every round; the ratios are medians over the rounds. Images are random:
    their values do not matter to speed.

    Args:
        model: The network.
        dtype: Of its convolutions and linear maps.
        batch_size: Positive pairs in a step.
        image_size: Side of the images, pixels.
        recipe: Of the augmentation; images are grey for that of digits.
        width: Factor on all channel counts.
        rounds: Rounds that count, after one that compiles.
    """
    from benchmarks import train_step as part
    from hypersphere_jax.utils import xla

    xla.use_eigen()

    part.step(model, dtype, batch_size, image_size, recipe, width, rounds)


def layers(
    model: Model = "small_alexnet",
    batch_size: int = 64,
    image_size: int = 32,
    channels: int = 3,
    width: float = 1.0,
    rounds: int = 5,
) -> None:
    """Time each layer of a network, its loss and its optimizer, beside the least they could take.

    Value, and value with gradients. All parts and the whole step, without augmentation, take turns
    in every round.

    Args:
        model: The network.
        batch_size: Positive pairs in a step.
        image_size: Side of the images, pixels.
        channels: Of the images.
        width: Factor on all channel counts.
        rounds: Rounds that count, after one that compiles.
    """
    from benchmarks import layers as part
    from hypersphere_jax.utils import xla

    xla.use_eigen()

    part.layers(model, batch_size, image_size, channels, width, rounds)


def loop(step_ms: float = 17.0, steps: int = 300, model: str = "resnet18") -> None:
    """Time the loop around a step that waits, with one step and with ten in a program.

    The state is the model's, with momentum; batches, log, checkpoints and their files are those of
    any run of digits. `host` is processor time of the loop's thread, which goes on while the device
    computes; `beside` is what a step takes longer than the device does.

    Args:
        step_ms: Of a step, which waits so long.
        steps: To take.
        model: Whose state it is.
    """
    from benchmarks import loop as part

    part.loop(step_ms, steps, model)


def text(
    dim: int = 200,
    embedding: int = 200,
    vocabulary: int = 30_000,
    batch_size: int = 400,
    rounds: int = 5,
) -> None:
    """Time the contrastive step of both sentence encoders, with Adam, on one device.

    All forms take turns in every round; the ratios are medians over the rounds. Words are random,
    sentences as long as those of novels. PyTorch's GRU runs on its packed sequences, and on
    sequences padded to the longest.

    Args:
        dim: Dimensions of each encoder's output.
        embedding: Dimensions of the word embeddings.
        vocabulary: Number of words.
        batch_size: Sentences in a batch.
        rounds: Rounds that count, after one that compiles.
    """
    from benchmarks import text as part

    part.text(dim, embedding, vocabulary, batch_size, rounds)


def vmapped(
    encoders: tuple[int, ...] = (4,),
    name: str = "digits",
    model: str = "small_cnn",
    dim: int = 32,
    width: float = 1.0,
    batch_size: int = 256,
    steps: int = 5,
    rounds: int = 5,
) -> None:
    """Time steps of encoders in one program, on one device, beside one encoder's, so many times.

    Both forms take turns in every round; ratios are medians over the rounds.

    Args:
        encoders: How many of them, in turn.
        name: The data.
        model: The network.
        dim: Dimensions of its output.
        width: Factor on all its channel counts.
        batch_size: Positive pairs in a step of each encoder.
        steps: Steps of each encoder in a round.
        rounds: Rounds that count, after one that compiles.
    """
    from benchmarks import vmapped as part

    part.vmapped(encoders, name, model, dim, width, batch_size, steps, rounds)


def convolution(batch_size: int = 128, rounds: int = 5) -> None:
    """Time value and gradients of each convolution, and its share of the matrix-product speed.

    The last column is our speed over that of a plain matrix product (2048x2048), measured in the
    same rounds.

    Args:
        batch_size: Images in a batch.
        rounds: Rounds that count, after one that compiles.
    """
    from benchmarks import convolution as part

    part.convolutions(batch_size, rounds)


def augment(
    recipe: str = "simclr_cifar_torchvision",
    sizes: tuple[int, ...] = (32, 64),
    images: int = 256,
    rounds: int = 5,
    epoch: int = 50_000,
    out: Path = Path("runs/bench/augment"),
) -> None:
    """Time a recipe against the same one in Pillow and NumPy, and see whether memory grows.

    Two views of each image; all numbers are of one view. Images are random, uint8, as large as the
    views. All forms take turns in every round, ours with each operation left out among them; ratios
    are medians over the rounds. On an accelerator the processor's time says nothing of it, so there
    the times are the clock's.

    Args:
        recipe: Name of the recipe.
        sizes: Sides of the images, pixels.
        images: Images in a batch.
        rounds: Rounds that count, after one that compiles.
        epoch: Images whose views are made while the memory is watched.
        out: Folder of the results: augment.json.
    """
    from benchmarks import augment as part

    part.augment(recipe, sizes, images, rounds, epoch, out)


def data(
    config: DataConfig,
    image_size: int | None = 32,
    batch_size: int = 64,
    steps: int = 20,
    workers: tuple[int, ...] = (0, 2),
) -> None:
    """The share of a SmallAlexNet step (one device) that is data, with each pipeline.

    "wait" is how long the loop waits for a batch; "gather" how long the device takes to gather the
    batch from the resident images, which is part of the step.

    Args:
        config: The data.
        image_size: Side of the images that enter the network, pixels.
        batch_size: Positive pairs in a step.
        steps: Steps that count, after a few that do not.
        workers: Processes that read while streaming; 0: threads. Each is measured.
    """
    from benchmarks import data as part

    part.pipelines(config, image_size, batch_size, steps, workers)


def losses(
    sizes: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    dim: int = 128,
    losses: tuple[str, ...] = LOSSES,
    rounds: int = 5,
    dense_limit: int = 8192,
    memory: bool = True,
    out: Path = Path("runs/bench/losses"),
) -> None:
    """Time value and gradient of the losses from small n to large, and measure their peak memory.

    Beside the library's form: the dense form in JAX and, where torch is installed, PyTorch's.
    All forms and a plain float32 matrix product, whose speed is the peak, take turns in every
    round; ratios are medians over the rounds. A form of more than 20 s a call gets one round. On
    two cores all default sizes take hours: results and pictures are in OUT after each size.

    Args:
        sizes: Points n (pairs, or queries and as many negatives).
        dim: Dimension of the points.
        losses: Which losses.
        rounds: Rounds that count, after one that compiles.
        dense_limit: The largest n of the dense forms and PyTorch, whose memory grows as n^2.
        memory: Measure the peak memory of each form, alone in a process of its own.
        out: Folder of the results: losses.json and a picture of each loss.
    """
    from benchmarks import losses as part

    part.scaling(sizes, dim, losses, rounds, dense_limit, memory, out)


def knn(
    queries: int = 10_000,
    bank: int = 50_000,
    dim: int = 4096,
    k: tuple[int, ...] = (5, 200),
    metric: str = "cosine",
    rounds: int = 1,
    block: int = 4096,
    compare: int = 500,
    memory: bool = True,
) -> None:
    """Time k-NN, and measure its share of the matrix product's speed and its peak memory.

    A product of blocks takes turns with each search, so that ratios hold on a busy machine too. The
    features are random, as those of `bench probe`, of ten classes.

    Args:
        queries: Rows that ask, n.
        bank: Rows that are searched, m.
        dim: Dimension d of the features.
        k: Neighbours that vote; a row of the table for each.
        metric: cosine or euclidean.
        rounds: Rounds that count, after one that compiles.
        block: Rows b of both sides of the plain product.
        compare: Queries for scikit-learn's brute force, and for ours beside it; 0 leaves it out.
        memory: Measure the peak memory of each k, alone in a process of its own.
    """
    from benchmarks import knn as part

    part.neighbours(queries, bank, dim, k, metric, rounds, block, compare, memory)


def scaling(
    devices: tuple[int, ...] = (1, 8, 64, 256),
    batch_per_device: int = 32,
    dim: int = 128,
    model: str = "resnet50",
    image_size: int = 224,
    step: bool = True,
    out: Path = Path("runs/bench/scaling"),
) -> None:
    """Count what devices send each other and hold, in programs compiled for 1 to 256 of them.

    For losses alone (value and gradient) and for the whole align+uniform step, with features
    gathered and with features along a ring. The programs are XLA's for virtual CPU devices: a GPU's
    or TPU's send the same arrays, but lay out their memory otherwise. Then bytes over nominal
    bandwidths, beside the time that the step computes.

    Args:
        devices: Numbers of devices.
        batch_per_device: Positive pairs of each device.
        dim: Dimension of the features.
        model: The encoder.
        image_size: Side of the images, pixels.
        step: Compile the whole step too, which takes up to a minute for each number and form.
        out: Folder of the results, scaling.json.
    """
    from benchmarks import scaling as part

    part.scaling(devices, batch_per_device, dim, model, image_size, step, out)


def probe(
    n: int = 50_000,
    n_test: int = 10_000,
    dim: int = 4096,
    classes: int = 10,
    l2: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
    folds: int | None = None,
    signal: float = 0.4,
    sklearn_rows: int = 5000,
    rounds: int = 2,
) -> None:
    """Time the "lbfgs" probe on features with class means and noise of a decaying spectrum.

    Then the fit alone takes turns with scikit-learn's LogisticRegression (its lbfgs, float32, 1000
    steps at most) at the chosen L2, on as many rows as asked for.

    Args:
        n: Training rows.
        n_test: Test rows.
        dim: Dimension of the features.
        classes: Number of classes.
        l2: Values of L2 to choose from.
        folds: Cross-validation in place of one held-out part.
        signal: Distance of the class means, relative to the noise.
        sklearn_rows: Training rows of the comparison; 0 leaves it out.
        rounds: Rounds of the comparison that count, after one that compiles.
    """
    from benchmarks import probe as part

    part.probe(n, n_test, dim, classes, l2, folds, signal, sklearn_rows, rounds)

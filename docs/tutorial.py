# %% [markdown]
# # Ten minutes
#
# Train an encoder of handwritten digits, plot and probe its features, and train with a custom loss.
# It takes one to three minutes on two cores and needs no network.
# [Download this page as a notebook](tutorial.ipynb).

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import hypersphere_jax as hj

digits = load_digits()
images = (digits.images * 15).astype(np.uint8)
labels = digits.target
train_x, train_y = images[:1400], labels[:1400]
test_x, test_y = images[1400:], labels[1400:]
print(images.shape, images.dtype)

# %% [markdown]
# ## Train
#
# An encoder maps an image to a point on the unit sphere in `dim` dimensions. The default loss is
# the sum of two terms. *Alignment* is the mean squared distance between two random views of an
# image,
#
# $$L_{align} = \frac{1}{n} \sum_i \|x_i - y_i\|_2^2,$$
#
# and *uniformity* is minimal where the points cover the sphere evenly:
#
# $$L_{uniform} = \log \frac{1}{n (n - 1)} \sum_{i \ne j} e^{-2 \|x_i - x_j\|_2^2}.$$
#
# In two dimensions the sphere is a circle, which is easy to plot. Training uses no labels. Both
# terms are evaluated every four epochs.

# %%
config = hj.PretrainConfig(
    name="circle",
    dim=2,
    width=0.5,  # half the channels
    epochs=16,
    eval_every_epochs=4,
    evaluators=("align_uniform",),
)
run = hj.train(config, images=train_x)
print(run)

# %% [markdown]
# A run is a folder with its config, log and checkpoints. The same call resumes an interrupted run
# and returns a finished one at once.
#
# ## Plot the circle
#
# Step 0 is the random initialization. Training spreads the images over the circle and brings
# images of the same digit together, without labels.


# %%
def show(axes, encoder, title):
    z = encoder(test_x)  # [n, 2], unit norm
    # Random radii reduce the overlap of points.
    radius = 1 + 0.25 * np.random.default_rng(0).random(len(z))
    points = axes.scatter(*(z.T * radius), c=test_y, cmap="tab10", s=8)
    axes.set_title(title)
    axes.set_aspect("equal")
    axes.axis("off")
    return points


figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4))
show(left, run.load(step=0), "random initialization")
points = show(right, run.encoder, "trained")
_ = figure.colorbar(points, ax=(left, right), label="digit", ticks=range(10))

# %% [markdown]
# ## Alignment and uniformity
#
# Each evaluation is a point in the plane of alignment and uniformity. Lower is better for both.

# %%
evaluated = [line for line in run.metrics if "eval/align" in line]
align = [line["eval/align"] for line in evaluated]
uniform = [line["eval/uniform"] for line in evaluated]
figure, axes = plt.subplots(figsize=(5, 3.5))
axes.plot(uniform, align, "o-")
for line, x, y in zip(evaluated, uniform, align, strict=True):
    axes.annotate(f"epoch {line['epoch']:.0f}", (x, y), xytext=(5, 3), textcoords="offset points")
_ = axes.set(xlabel="uniformity", ylabel="alignment")

# %% [markdown]
# `measure` computes both for any features of unit norm. Here the positive of an image is the same
# image, shifted by one pixel.

# %%
z = run.encoder(test_x)
result = hj.measure(z, run.encoder(np.roll(test_x, 1, axis=2)))
for name in ("align", "uniform", "uniform_optimum", "effective_rank"):
    print(f"{name:16} {result[name]:.3f}")

# %% [markdown]
# ## Probe
#
# A linear classifier and nearest neighbours measure how useful the features are. They are fitted
# on training images and scored on test images. Two dimensions are few for this, so the next
# encoder has 32.

# %%
config = hj.PretrainConfig(name="digits", dim=32, width=0.5, epochs=12)
run = hj.train(config, images=train_x)
encoder = run.encoder
split = encoder(train_x), train_y, encoder(test_x), test_y
linear = hj.linear_probe(*split)
nearest = hj.knn_probe(*split, k=5)
low, high = linear["top1_interval"]
print(f"linear: {linear['top1']:.1f}% (95% interval: {low:.1f} to {high:.1f})")
print(f"5-NN: {nearest['top1']:.1f}%")

# %% [markdown]
# ## Use the encoder
#
# An encoder accepts uint8 images of any size and number, or a list of images or paths, and uses
# all devices. `layer` selects another layer than the output.

# %%
h = encoder(test_x, layer="backbone")
similarities = encoder(test_x) @ encoder(test_x[:1])[0]
print(list(encoder.layers))
print(h.shape, test_y[similarities.argsort()[-8:]])

# %% [markdown]
# `save` writes one folder with the weights and the config (safetensors).

# %%
encoder.save("encoder")
again = hj.load("encoder")
np.array_equal(again(test_x), encoder(test_x))

# %% [markdown]
# ## Use a custom loss
#
# A loss is a function of the features of both views. This one is SimCLR's loss at a low
# temperature plus some alignment. Networks, data and augmentations are passed in the same way: see
# [Bring your own](how-to/bring-your-own.md).


# %%
def loss(x, y):
    return hj.nt_xent_loss(x, y, tau=0.2) + 0.1 * hj.align_loss(x, y)


custom = hj.train(config.replace(name="custom"), images=train_x, loss=loss)
split = custom.encoder(train_x), train_y, custom.encoder(test_x), test_y
print(f"5-NN: {hj.knn_probe(*split, k=5)['top1']:.1f}%")

# %% [markdown]
# ## Next steps
#
# - [Train on custom images](how-to/own-images.md), [many devices](how-to/many-devices.md)
# - [Which loss to choose](losses.md)
# - [The papers' tables and figures](results.md), with small encoders

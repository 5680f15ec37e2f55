"""Speed and memory, measured in one run against another form of the same computation."""

# Part of `bench`, a function of `options.py`: what it measures.
PARTS = {
    "start": "What one waits for before the first step of a run.",
    "step": "The align+uniform step of a network, beside its roofline.",
    "layers": "Where the time of a step goes, layer by layer, each beside its limit.",
    "loop": "What the training loop takes beside its steps.",
    "text": "The contrastive step of both sentence encoders, with Adam.",
    "vmapped": "Steps of several encoders in one program.",
    "convolution": "Convolutions, value and gradients.",
    "augment": "A recipe against the same one in Pillow and NumPy.",
    "data": "The share of a step that is data, with each pipeline.",
    "losses": "The losses from small n to large: time and peak memory.",
    "knn": "k-NN: time, and peak memory.",
    "scaling": "What up to 256 devices send each other, and hold.",
    "probe": "The linear probe against scikit-learn's.",
}

"""Speed and memory, measured in one run against another form of the same computation."""

# Part of `bench`: its module here, its function, and what it measures.
PARTS = {
    "accelerator": ("accelerator", "accelerator", "Everything that a GPU is asked, in 25 minutes."),
    "step": ("train_step", "step", "The align+uniform step of a network, beside its roofline."),
    "loop": ("loop", "loop", "What the training loop takes beside its steps."),
    "text": ("text", "text", "The contrastive step of both sentence encoders, with Adam."),
    "vmapped": ("vmapped", "vmapped", "Steps of several encoders in one program."),
    "convolution": ("convolution", "layers", "Convolutions, value and gradients."),
    "augment": ("augment", "augment", "A recipe against the same one in Pillow and NumPy."),
    "data": ("data", "pipelines", "The share of a step that is data, with each pipeline."),
    "losses": ("losses", "scaling", "The losses from small n to large: time and peak memory."),
    "knn": ("knn", "neighbours", "k-NN: time, and peak memory."),
    "scaling": ("scaling", "scaling", "What up to 256 devices send each other, and hold."),
    "probe": ("probe", "probe", "The linear probe against scikit-learn's."),
}

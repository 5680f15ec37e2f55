"""Which extra of the package brings a module: `pip install ".[train]"`."""

# Extras of pyproject.toml and the modules that the package imports of them.
EXTRAS = {
    "train": (
        *("flax", "optax", "orbax", "sklearn", "PIL", "tyro", "rich", "matplotlib", "tensorboardX"),
        *("h5py", "scipy", "grain", "safetensors", "yaml", "docstring_parser", "jinja2"),
    ),
    "tfds": ("tensorflow_datasets", "importlib_resources"),
    "wandb": ("wandb",),
}


def how_to_install(module: str | None) -> str | None:
    """The command that brings a module; None for one that no extra has.

    Args:
      module: its dotted name, as `ModuleNotFoundError.name` has it.
    """
    top = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return f'pip install ".[{extra}]"'
    return None

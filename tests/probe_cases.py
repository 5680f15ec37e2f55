"""What is asked of a probe."""

from hypersphere_jax.config import ProbeConfig


def asked(*names, **options):
    return ProbeConfig(tuple(map(str, names)), devices=1, **options)

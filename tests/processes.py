"""Processes with the environment of a user."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import platforms

ROOT = Path(__file__).parent.parent


def environment(**more: str) -> dict[str, str]:
    """Return the environment without the tests' XLA flags, with their compilation cache."""
    variables = dict(os.environ)
    variables.pop("PYTHONPATH", None)  # tests must pass without one
    flags = variables.pop("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if flag not in platforms.ADDED]
    if flags:
        variables["XLA_FLAGS"] = " ".join(flags)
    if jax.default_backend() == "cpu":
        variables["JAX_PLATFORMS"] = "cpu"
    variables["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
    variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.03"
    return variables | more


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run Python in the project's folder and return its output as text."""
    options = {"cwd": ROOT, "env": environment(), "capture_output": True, "text": True} | options
    return subprocess.run([sys.executable, *arguments], **options)


def begun(*arguments: str, **more: str) -> subprocess.Popen:
    """Start Python in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

"""Processes that a test starts: the environment of a user, and the command line in it."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import platforms

ROOT = Path(__file__).parent.parent


def environment(**more: str) -> dict[str, str]:
    """Environment of a user's process: XLA's default level, the user's own XLA flags."""
    kept = dict(os.environ)
    flags = kept.pop("XLA_FLAGS", "").split()
    if flags := [flag for flag in flags if flag not in platforms.ADDED]:
        kept["XLA_FLAGS"] = " ".join(flags)
    if jax.default_backend() == "cpu":  # as the suite's `--platform`
        kept["JAX_PLATFORMS"] = "cpu"
    return kept | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.03",
        **more,
    }


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Python with these arguments in the project's folder; never a time-out."""
    options = {"cwd": ROOT, "env": environment(), "capture_output": True, "text": True} | options
    return subprocess.run([sys.executable, *arguments], **options)


def begun(*arguments, **more):
    """A process of a user's, whose output is read while it goes on."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

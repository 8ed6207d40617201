"""Builds torch_tern into the build folder, which the tests of this folder need. Nothing is written beside its sources."""
import glob
import hashlib
import os
import shlex
import shutil
import subprocess
import sys

import extension


CXXFLAGS = "-O1"  # as the tests: it takes three quarters of -O2's time


def inputs_digest():
    """Of all that the extension is made of."""
    import torch

    digest = hashlib.sha256(f"{sys.version} {torch.__version__} {extension.BUILD} {CXXFLAGS}".encode())
    patterns = ("setup.py", "pyproject.toml", "src/*", "torch_tern/*.py", "../include/tern/*.h")
    for path in sorted(path for pattern in patterns for path in glob.glob(os.path.join(extension.SOURCE, pattern))):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def launched(name, launcher):
    """The compiler behind a launcher such as ccache, as one command."""
    path = os.path.join(extension.FOLDER, "bin", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {shlex.quote(launcher)} {shlex.quote(shutil.which(name))} "$@"\n')
    os.chmod(path, 0o755)
    return path


def main():
    stamp, digest = os.path.join(extension.FOLDER, "stamp"), inputs_digest()
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read() == digest:
                return
        os.unlink(stamp)
    env = {**os.environ, "TERN_BUILD": os.path.abspath(extension.BUILD), "CXXFLAGS": CXXFLAGS, "MAX_JOBS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    os.makedirs(extension.FOLDER, exist_ok=True)
    launcher = os.environ.get("TERN_TEST_LAUNCHER")
    if launcher:
        env.update(CC=launched("gcc", launcher), CXX=launched("g++", launcher))
    command = [sys.executable, "setup.py", "egg_info", "--egg-base", extension.FOLDER, "build", "--force"]
    command += ["--build-base", os.path.join(extension.FOLDER, "objects"), "--build-lib", extension.LIBRARY]
    done = subprocess.run(command, cwd=extension.SOURCE, env=env, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"c10d/build: setup.py failed with status {done.returncode}")
    warm = f"import sys; sys.path.insert(0, {extension.LIBRARY!r}); import torch_tern; print(torch_tern._load().tern_version())"
    subprocess.run([sys.executable, "-c", warm], env=env, check=True)
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(digest)


if __name__ == "__main__":
    extension.enter()
    main()

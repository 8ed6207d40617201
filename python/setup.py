"""Builds torch_tern's extension against the torch of this environment and an installed tern.

tern is found with pkg-config, or in the folder TERN_PREFIX. TERN_BUILD names a build folder of a checkout instead,
whose library is then used where it lies. CXXFLAGS are the compiler's last flags."""
import os
import re
import shlex
import subprocess

from setuptools import setup

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a back end that is installed already may be broken
import torch
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = os.path.dirname(os.path.abspath(__file__))


def tern_paths():
    """The folders of tern's headers and of its library."""
    build, prefix = os.environ.get("TERN_BUILD"), os.environ.get("TERN_PREFIX")
    if build:
        return os.path.join(HERE, "..", "include"), build
    if prefix:
        return os.path.join(prefix, "include"), os.path.join(prefix, "lib")
    try:
        flags = subprocess.run(
            ["pkg-config", "--cflags-only-I", "--libs-only-L", "--keep-system-cflags", "--keep-system-libs", "tern"],
            check=True, capture_output=True, text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as why:
        raise SystemExit(
            "torch-tern: tern is not installed where pkg-config looks. `make install` in a checkout of tern, "
            "and set PKG_CONFIG_PATH, or TERN_PREFIX to the folder given as PREFIX"
        ) from why
    found = {flag[:2]: flag[2:] for flag in shlex.split(flags)}
    return found["-I"], found["-L"]


def tern_version(headers):
    with open(os.path.join(headers, "tern", "base.h"), encoding="utf-8") as file:
        return ".".join(re.findall(r"^#define TERN_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", file.read(), re.M))


class Build(BuildExtension):
    """Also notes what the extension is built for: beside another torch it cannot be loaded and asked."""

    def run(self):
        super().run()
        folder = os.path.dirname(self.get_ext_fullpath("torch_tern._C"))
        with open(os.path.join(folder, "built_with.py"), "w", encoding="utf-8") as file:
            file.write(f"TORCH, TERN, LIBRARY = {torch.__version__!r}, {tern_version(headers)!r}, {library!r}\n")


headers, library = (os.path.abspath(path) for path in tern_paths())
setup(
    ext_modules=[
        CppExtension(
            "torch_tern._C",
            [os.path.join("src", "extension.cc")],
            depends=[os.path.join("src", name) for name in sorted(os.listdir(os.path.join(HERE, "src")))],
            include_dirs=[headers],
            library_dirs=[library],
            runtime_library_dirs=[library],
            libraries=["tern"],
            extra_compile_args=["-O2", "-g0", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden", *shlex.split(os.environ.get("CXXFLAGS", ""))],
        )
    ],
    cmdclass={"build_ext": Build},
)

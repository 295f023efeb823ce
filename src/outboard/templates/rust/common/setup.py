"""Builds the driver with cargo. What the package is called and offers stands in pyproject.toml."""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class Cargo(build_ext):
    """Builds the crate in place of C files."""

    def build_extension(self, extension):
        """Makes the library, and puts it where setuptools wants it."""
        target = Path(self.build_temp).resolve()
        subprocess.run(["cargo", "build", "--release", "--target-dir", target], check=True)
        library = Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target / "release/libmychip.so", library)


setup(ext_modules=[Extension("mychip.libmychip", sources=[])], cmdclass={"build_ext": Cargo})

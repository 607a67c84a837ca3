"""The part of the build that pyproject.toml cannot say: the native kernels, in C++.

Without a compiler the package is installed all the same; a plan that names the kernel set then
says so, and is not run.
"""

import os
import runpy
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("kernels") / "native"
# Not imported as a module of its package: that is not installed yet.
SOURCES_DIGEST = runpy.run_path(str(FOLDER / "sources.py"))["sources_digest"]()
FLAGS = [
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    # Sums and products are rounded where they are written, alike on every processor.
    "-ffp-contract=off",
    "-fno-math-errno",
    # Nobody looks at the processor's flags; a choice between two numbers can then be in a vector.
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
    "-g0",
    # Warned of by GCC in its own header of AVX-512 intrinsics.
    "-Wno-maybe-uninitialized",
]


class BuildLibrary(build_ext):
    """Compiles the files of the one extension side by side."""

    def build_extension(self, ext: Extension) -> None:
        """Build it, or say that it was left out."""
        if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
            self.warn("no C++ compiler: the kernel set native-cpu/1 is not built")
            return
        compile_one = self.compiler.compile
        sources = list(ext.sources)

        def compile_all(files, *args, **kwargs):  # type: ignore[no-untyped-def]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda file: compile_one([file], *args, **kwargs), files)
            return [path for paths in made for path in paths]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one
            ext.sources = sources


setup(
    ext_modules=[
        Extension(
            "kernels.native._library",
            sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
            depends=sorted(str(path) for path in FOLDER.glob("*.h")),
            define_macros=[("NATIVE_SOURCES", f'"{SOURCES_DIGEST}"')],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)

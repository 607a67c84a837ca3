"""The part of the build that pyproject.toml cannot say: the native kernels, in C++.

Without a compiler the package is installed all the same; a plan that names the kernel set then
says so, and is not run.
"""

import os
import runpy
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("kernels") / "native"
# Not imported as a module of its package: that is not installed yet.
SOURCES = runpy.run_path(str(FOLDER / "sources.py"))


class BuildLibrary(build_ext):
    """Compiles the files of the one extension side by side."""

    def build_extension(self, ext: Extension) -> None:
        """Build it, or say that it was left out."""
        named = shlex.split(os.environ.get("CXX", "c++"))[:1]
        if not any(map(shutil.which, [*named, "c++", "g++"])):
            self.warn("no C++ compiler: the kernel set native-cpu/1 is not built")
            return
        # A library older than its sources is told by their digest; times of files can lie.
        self.force = True
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
            define_macros=[("NATIVE_SOURCES", f'"{SOURCES["sources_digest"]()}"')],
            extra_compile_args=list(SOURCES["FLAGS"]),
            extra_link_args=["-pthread"],
            language="c++",
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)

"""A cache of its own for each test, and op packages that tests write, edit and import again."""

from __future__ import annotations

import importlib
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from machete.megakernel import Megakernel
from machete.megakernel.launch import compilation
from machete.megakernel.launch.artefact import Artefact
from machete.megakernel.launch.cache.store import Store

#: An op that calls a helper, which uses a constant of a third module; beside them a module that nobody imports.
SOURCES = {
    "cached_op": """
        import cutlass
        import cutlass.cute as cute
        from cached_helper import twice
        from machete.megakernel import Op

        OFFSET = 0.0


        class Affine(Op):
            reads = {"x": (None, ("N",))}
            writes = {"y": (None, ("N",))}
            tile = ("N",)
            bias = 0.0

            @classmethod
            def schedule(cls, *, x, y, config=None):
                return [cls._schedule_single(tile_sizes={"N": 256}, config=config, x=x, y=y)]

            @cute.jit
            def compute(self, tile_N, x, y):
                for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
                    n = tile_N * self.tile_size_N + i
                    if n < self.N:
                        y[n] = twice(x[n]) + OFFSET + self.bias
        """,
    "cached_helper": """
        import cutlass.cute as cute
        from cached_constants import FACTOR


        @cute.jit
        def twice(value):
            return value * FACTOR
        """,
    "cached_constants": """
        FACTOR = 2.0
        """,
    "cached_bystander": """
        UNUSED = 1
        """,
}


class Package:
    """The modules of `SOURCES`, as a process that has just started would import them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in SOURCES:
            self.edit(name)

    def edit(self, name: str, old: str = "", new: str = "") -> None:
        """Write a module, with a text replaced."""
        path = self.folder / f"{name}.py"
        source = path.read_text() if path.exists() else textwrap.dedent(SOURCES[name])
        assert old in source
        path.write_text(source.replace(old, new))

    def load(self, name: str = "cached_op") -> ModuleType:
        """The module, imported anew."""
        for loaded in SOURCES:
            sys.modules.pop(loaded, None)
        importlib.invalidate_caches()
        linecache.clearcache()
        compilation.forget()
        return importlib.import_module(name)

    def compile(self, module: ModuleType | None = None, **config: object) -> Artefact:
        """What a process that has just started gets for the op."""
        op = (module or self.load()).Affine
        compilation.forget()
        x = torch.zeros(512)
        return Megakernel(op.schedule(x=x, y=torch.empty_like(x), config=config), arch="sm_90a").compile()

    def run(self, module: ModuleType | None = None) -> list[float]:
        """y for x = 0, 1, 2."""
        op = (module or self.load()).Affine
        x = torch.arange(3.0)
        y = torch.empty_like(x)
        Megakernel(op.schedule(x=x, y=y), arch="sm_90a").run()
        return y.tolist()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty cache."""
    monkeypatch.setenv("MACHETE_CACHE", "on")
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path / "cache"))
    compilation.forget()
    yield Store(tmp_path / "cache")
    compilation.forget()


@pytest.fixture
def package(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """The op package, importable, with an empty cache."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits may fall into one tick of the file system's clock
    yield Package(folder)
    for name in SOURCES:
        sys.modules.pop(name, None)


@pytest.fixture
def only_object(store: Store) -> Callable[[], Path]:
    """The one object in the cache."""

    def find() -> Path:
        [path] = store.objects()
        return path

    return find

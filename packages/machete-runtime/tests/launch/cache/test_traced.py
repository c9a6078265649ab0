"""What is recorded while code runs, and what is not: logging, imports and the garbage collector of others."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from machete.megakernel.launch.cache.traced import Dependencies, Recorder, file_digest


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes an importable module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write(name: str, source: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        made.append(name)
        return path

    yield write
    for name in made:
        sys.modules.pop(name, None)


def recorded(run: Callable[[], object]) -> Dependencies:
    recorder = Recorder()
    with recorder.recording():
        run()
    dependencies = recorder.dependencies()
    assert dependencies is not None
    return dependencies


def test_files_of_what_runs_and_what_those_import(module: Callable[[str, str], Path]) -> None:
    constants = module("traced_constants", "SIZE = 3\n")
    helper = module("traced_helper", "from traced_constants import SIZE\ndef help(): return SIZE\n")
    lazy = module("traced_lazy", "LATE = 4\n")
    main = module(
        "traced_main",
        "import traced_helper, traced_unused\n"
        "def run():\n    from traced_lazy import LATE\n    return traced_helper.help() + LATE\n",
    )
    unused = module("traced_unused", "import traced_far\n")
    far = module("traced_far", "")
    import traced_main

    dependencies = recorded(traced_main.run)
    # What is imported counts, used or not: nobody knows where a value came from.
    assert {str(path) for path in (constants, helper, lazy, main, unused, far)} <= set(dependencies.files)
    assert not dependencies.changed()
    constants.write_text("SIZE = 4\n")
    assert dependencies.changed() == f"{constants} has changed"
    constants.unlink()
    assert dependencies.changed() == f"{constants} is gone"


def test_values_of_globals(module: Callable[[str, str], Path]) -> None:
    module("traced_values", "SIZE = 3\nOTHER = 1\ndef run(): return SIZE\n")
    import traced_values

    dependencies = recorded(traced_values.run)
    traced_values.OTHER = 2
    assert not dependencies.changed()
    traced_values.SIZE = 4
    assert dependencies.changed() == "traced_values.SIZE has another value"


def test_handlers_finders_and_collectors_of_others_do_not_count(
    module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = module(
        "traced_foreign",
        "import logging\ncalls = set()\ndef called(*who):\n    calls.add(str(who[0]))\n"
        "class Handler(logging.Handler):\n    def emit(self, record): called('handler')\n"
        "class Finder:\n    def find_spec(self, *_): called('finder')\n",
    )
    main = module(
        "traced_noisy",
        "import logging, gc\n"
        "def run():\n"
        "    logging.getLogger('traced').warning('text')\n"
        "    try:\n        import traced_no_such_module\n    except ImportError:\n        pass\n"
        "    return [[] for _ in range(100_000)]\n",
    )
    import traced_foreign
    import traced_noisy

    logger = logging.getLogger("traced")
    handler = traced_foreign.Handler()
    logger.addHandler(handler)
    monkeypatch.setattr(sys, "meta_path", [traced_foreign.Finder(), *sys.meta_path])
    gc.callbacks.append(traced_foreign.called)
    try:
        traced_foreign.calls.clear()
        dependencies = recorded(traced_noisy.run)
    finally:
        gc.callbacks.remove(traced_foreign.called)
        logger.removeHandler(handler)
    assert {"handler", "finder"} <= traced_foreign.calls  # they did run
    assert str(main) in dependencies.files
    assert str(foreign) not in dependencies.files
    assert gc.isenabled()


def test_code_without_a_file_is_not_known() -> None:
    recorder = Recorder()
    namespace = {"__name__": "typed_in"}
    function = eval(compile("lambda: 1", "<prompt>", "eval"), namespace)  # noqa: S307
    with recorder.recording():
        function()
    assert recorder.dependencies() is None


def test_code_of_exec_is_not_known_but_methods_of_dataclasses_are(module: Callable[[str, str], Path]) -> None:
    module(
        "traced_written",
        "import collections, dataclasses, typing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
        "Pair = collections.namedtuple('Pair', 'a b')\n"
        "class Noted:\n    x: 'int'\n"
        "exec('def written(): return 1')\n"
        "def harmless(): return Point(1) == Point(2), Pair(1, 2), typing.get_type_hints(Noted)\n",
    )
    import traced_written

    assert recorded(traced_written.harmless)
    recorder = Recorder()
    with recorder.recording():
        traced_written.written()
    assert recorder.dependencies() is None


@pytest.mark.parametrize(
    "statement", ["import traced_tuning", "from traced_package import traced_near as traced_tuning"]
)
def test_values_of_modules_that_a_function_imports(
    module: Callable[[str, str], Path], tmp_path: Path, statement: str
) -> None:
    (tmp_path / "traced_package").mkdir()
    module("traced_package/__init__", "")
    module("traced_package/traced_near", "SCALE = 1\n")
    module("traced_tuning", "SCALE = 1\n")
    module("traced_local", f"def run():\n    {statement}\n    return traced_tuning.SCALE\n")
    import traced_local

    dependencies = recorded(traced_local.run)
    assert not dependencies.changed()
    name = "traced_package.traced_near" if "package" in statement else "traced_tuning"
    sys.modules[name].SCALE = 2
    try:
        assert dependencies.changed() == f"{name}.SCALE has another value"
    finally:
        for loaded in ("traced_package", "traced_package.traced_near"):
            sys.modules.pop(loaded, None)


def test_a_process_need_not_have_imported_what_was_traced(module: Callable[[str, str], Path], tmp_path: Path) -> None:
    (tmp_path / "traced_parent").mkdir()
    module("traced_parent/__init__", "")
    module("traced_parent/traced_child", "SCALE = 1\n")
    module(
        "traced_chain",
        "import traced_parent.traced_child\ndef run(): return traced_parent.traced_child.SCALE\n",
    )
    import traced_chain

    dependencies = recorded(traced_chain.run)
    assert dependencies.values["traced_parent.traced_child"]
    del sys.modules["traced_parent"].traced_child  # as in a process that has only imported the package
    del sys.modules["traced_parent.traced_child"]
    assert not dependencies.changed()
    sys.modules.pop("traced_parent")


def test_under_a_profiler_nothing_is_known() -> None:
    recorder = Recorder()
    calls = []
    sys.setprofile(lambda *_: calls.append(1))
    try:
        with recorder.recording():
            gc.isenabled()
    finally:
        sys.setprofile(None)
    assert recorder.dependencies() is None
    assert calls  # and the profiler was not disturbed


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert file_digest(str(path)) is None
    path.write_text("one")
    one = file_digest(str(path))
    path.write_text("two")
    assert file_digest(str(path)) != one

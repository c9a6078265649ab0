"""A kernel on CUDA streams: one launcher for each stream, and for each binding that a graph captured."""

from collections.abc import Callable, Iterable

import torch

from .artefact import Artefact
from .binding import Binding
from .capture import capture_on, keep_with, not_captured
from .gpu import Parameters, prepare
from .image import Image
from .patch import Patcher
from .slots import Change
from .state import LaunchState, Tables
from .temporaries import Temporary


class StreamLauncher:
    """A kernel ready to launch on one stream.

    `launch()` issues it with the data that the state holds; what changed in the binding since is in `changes`, and
    `catch_up` puts it into the state first, in stream order.
    """

    def __init__(self, artefact: Artefact, image: Image, state: LaunchState, device: int, num_sms: int, stream: int):
        self._image, self.state = image, state
        self._parameters = Parameters(state.parameters())
        self._report = state.report_words
        self._patcher = Patcher(state.data.data_ptr(), stream, device)
        self.changes: dict[Change, None] = {}
        self.launch = prepare(artefact, device, num_sms, self._parameters, stream)

    def given_up(self) -> bool:
        """Whether a launch before has reported a wait that did not end."""
        return bool(self._report[0])

    def catch_up(self) -> None:
        """Write all pending changes, after the launches before and before the next one. The caller holds a lock."""
        for change in self.changes:
            self._patcher.write(change.positions, self._image.words[change.positions])
            for tensor in change.tensors:
                use_on_current_stream(tensor)
        self.changes.clear()


def use_on_current_stream(tensor: torch.Tensor) -> None:
    """Have the allocator not reuse the tensor's memory before what this stream has been given so far has ended."""
    if not isinstance(tensor, Temporary):  # whose memory belongs to the state of a launch
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


class StreamLaunchers:
    """The launchers of one kernel on one device. Its device is the current one when methods are called.

    Whoever calls a method holds the lock that changes of the binding are made under: a new launcher copies the image,
    which must not change meanwhile, and has to hear of every change after. Looking a stream up in `on` needs no lock.
    """

    def __init__(
        self,
        artefact: Artefact,
        tables: Tables,
        binding: Binding,
        make_state: Callable[[], LaunchState],
        device: int,
        num_sms: int,
    ) -> None:
        self._artefact, self._tables, self._binding = artefact, tables, binding
        self._make_state, self._device, self._num_sms = make_state, device, num_sms
        self._capture = 0  # number of the capture that `_captured` belongs to
        self._captured: dict[int, StreamLauncher] = {}
        self.on: dict[int, StreamLauncher] = {}  # stream to its launcher

    def changed(self, changes: Iterable[Change]) -> None:
        """The binding changed: launches from now on have other data, those before keep theirs."""
        changes = dict.fromkeys(changes)
        if changes:
            self._captured.clear()
            for launcher in self.on.values():
                launcher.changes |= changes

    def add(self, stream: int) -> StreamLauncher:
        """The launcher for a stream that had none yet when it was looked up."""
        if stream not in self.on:
            for tensor in (*self._tables.tensors, *self._binding.tensors()):
                use_on_current_stream(tensor)
            self.on[stream] = self._launcher(self._make_state(), stream)
        return self.on[stream]

    def captured(self, stream: int) -> StreamLauncher:
        """The launcher for a stream that is being captured: a state that never changes, kept alive by the graph.

        Launches of one capture on one stream follow each other, and share it while the binding stays the same.
        """
        capture = capture_on(stream)
        assert capture is not None
        number, graph = capture
        if number != self._capture:
            self._capture, self._captured = number, {}
        if stream not in self._captured:
            with not_captured(self._device):
                launcher = self._launcher(self._make_state(), stream)
            keep_with(graph, (launcher.state, self._tables, self._binding.tensors()))
            self._captured[stream] = launcher
        return self._captured[stream]

    def _launcher(self, state: LaunchState, stream: int) -> StreamLauncher:
        return StreamLauncher(self._artefact, self._binding.image, state, self._device, self._num_sms, stream)

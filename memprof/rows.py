"""The layouts of rows, for NumPy: those of the C structs that they name.

Offsets are written out: rows are the core's memory, not copies of it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.void]
Ints: TypeAlias = NDArray[np.int64]

NO_INDEX = 0xFFFFFFFF
"""An id without a value: no op, no module, no stack."""

CPU = -1
"""The number that rows have for the CPU; CUDA devices have their index."""


def as_rows(buffer: Any, dtype: Any) -> NDArray[Any]:
    """View BUFFER, without a copy, as a read-only array of DTYPE."""
    if memoryview(buffer).nbytes == 0:
        array: NDArray[Any] = np.empty(0, dtype)
    else:
        array = np.frombuffer(buffer, dtype)
    array.flags.writeable = False
    return array


def _rows(size: int, *fields: tuple[str, str, int]) -> np.dtype[np.void]:
    """Make a row type from (name, format, offset in bytes) triples."""
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype(
        {
            "names": list(names),
            "formats": list(formats),
            "offsets": list(offsets),
            "itemsize": size,
        }
    )


EVENT_DTYPE = _rows(
    64,
    ("address", "<u8", 0),
    ("size", "<u8", 8),  # bytes; for some kinds another number, see event.h
    ("time_ns", "<i8", 16),
    ("stream", "<u8", 24),  # the driver's handle; 0: default stream, or CPU
    ("thread", "<u4", 32),  # kernel thread id
    ("op", "<u4", 36),  # string id
    ("module", "<u4", 40),  # string id
    ("stack", "<u4", 44),  # stack id
    ("step", "<i4", 48),
    ("op_instance", "<u4", 52),  # equal only inside one run of one outermost op
    ("kind", "u1", 56),  # _core.EVENT_KINDS
    ("phase", "u1", 57),  # index into _core.PHASES
    ("device", "<i2", 58),  # CUDA index, or -1: the CPU
    ("pool", "<u2", 60),  # index of the memory pool; 0: default
    ("flags", "<u2", 62),  # MP_FLAG_* of event.h
)
"""One event: ``mp_event_t`` of ``csrc/event.h``, 64 bytes."""

ALLOCATION_DTYPE = _rows(
    144,
    ("id", "<i8", 0),  # its row in allocations("all")
    ("address", "<u8", 8),
    ("size", "<u8", 16),  # bytes asked for
    ("stream", "<u8", 24),
    ("born_event", "<i8", 32),  # -1: older than the recording
    ("died_event", "<i8", 40),  # -1: alive at the end.  The request of its free
    ("born_ns", "<i8", 48),
    ("died_ns", "<i8", 56),
    ("completed_event", "<i8", 64),  # the free was completed; -1: not
    ("thread", "<u4", 72),
    ("op", "<u4", 76),
    ("module", "<u4", 80),
    ("stack", "<u4", 84),
    ("forward_op", "<u4", 88),  # born in backward: what caused it
    ("forward_module", "<u4", 92),
    ("forward_stack", "<u4", 96),
    ("owner", "<u4", 100),  # string id: the parameter's name and so on
    ("region", "<u4", 104),  # string id: innermost record_function region
    ("op_instance", "<u4", 108),
    ("born_step", "<i4", 112),  # -1: as born_event
    ("died_step", "<i4", 116),
    ("device", "<i2", 120),
    ("pool", "<u2", 122),
    ("flags", "<u2", 124),  # MP_FLAG_* at birth
    ("phase", "u1", 126),  # at birth
    ("died_phase", "u1", 127),
    ("category", "u1", 128),  # index into _core.CATEGORIES
    ("reason", "u1", 129),  # index into _core.REASONS
    ("role", "u1", 130),  # index into _core.ROLES
    ("died_in_op", "u1", 131),  # freed inside the outermost op that made it
    ("shape", "<u4", 136),  # string id: its tensor's, with record_shapes=True
)
"""One life: ``mp_allocation_t`` of ``csrc/life.h``, 144 bytes."""

STEP_DTYPE = _rows(
    80,
    ("number", "<i4", 0),
    ("device", "<i2", 4),
    ("recorded", "<u2", 6),
    ("begin_event", "<i8", 8),
    ("end_event", "<i8", 16),  # -1: still open
    ("begin_ns", "<i8", 24),
    ("end_ns", "<i8", 32),
    ("requested_bytes_at_end", "<i8", 40),
    ("requested_bytes_peak", "<i8", 48),
    ("active_bytes_peak", "<i8", 56),
    ("reserved_bytes_peak", "<i8", 64),
    ("allocated_total", "<i8", 72),  # bytes allocated in it
)
"""One step on one device: ``mp_step_stats_t`` of ``csrc/counters.h``, 80 bytes."""

DRIVER_DTYPE = _rows(
    104,
    ("born_event", "<i8", 0),  # -1: older than the recording
    ("died_event", "<i8", 8),  # -1: held at the end
    ("born_ns", "<i8", 16),
    ("died_ns", "<i8", 24),
    ("address", "<u8", 32),  # or a handle, as the group says
    ("size", "<u8", 40),  # bytes as the call said them
    ("handle", "<u8", 48),  # mapping: the handle mapped; else the context, or 0
    ("thread", "<u4", 64),
    ("op", "<u4", 68),  # string id
    ("module", "<u4", 72),  # string id
    ("stack", "<u4", 76),  # stack id
    ("owner", "<u4", 80),  # string id: the library that asked
    ("born_step", "<i4", 84),  # -1: as born_event
    ("died_step", "<i4", 88),
    ("references", "<u4", 92),  # of a handle, at the end
    ("device", "<i2", 96),  # -1: host memory; -2: unknown
    ("flags", "<u2", 98),  # MP_FLAG_* at birth
    ("group", "u1", 100),  # index into _core.DRIVER_GROUPS
    ("phase", "u1", 101),
    ("is_torch", "u1", 102),  # lies in a segment of torch's: counted there
)
"""One thing taken from the driver: ``mp_driver_life_t`` of ``csrc/ledger.h``."""

DRIVER_ACCOUNT_DTYPE = _rows(
    48,
    ("bytes", "<i8", 0),  # at the event asked for
    ("peak", "<i8", 8),  # highest up to it
    ("total", "<i8", 16),  # all that was taken up to it
    ("count", "<i8", 24),
    ("taken", "<i8", 32),
    ("owner", "<u4", 40),
    ("device", "<i2", 44),
    ("group", "u1", 46),
    ("is_torch", "u1", 47),
)
"""What one owner holds in one group: ``mp_driver_account_t`` of ``csrc/ledger.h``."""

DRIVER_GAP_DTYPE = _rows(
    40,
    ("begin_event", "<i8", 0),  # -1: before the recording
    ("end_event", "<i8", 8),  # -1: to the end
    ("begin_ns", "<i8", 16),
    ("end_ns", "<i8", 24),
    ("reason", "<u4", 32),  # string id
)
"""A stretch in which nobody listened: ``mp_driver_gap_t`` of ``csrc/ledger.h``."""

KERNEL_DTYPE = _rows(
    88,
    ("start_ns", "<i8", 0),  # on the clock of all times of a recording
    ("end_ns", "<i8", 8),
    ("launch_ns", "<i8", 16),  # when it was launched; -1: before the recording
    ("bytes", "<u8", 24),  # of a copy or set; of a kernel 0
    ("event", "<i8", 32),
    ("launch_event", "<i8", 40),  # -1: as launch_ns
    ("name", "<u4", 48),  # string id: the kernel, "Memcpy HtoD (...)", "Memset (...)"
    ("op", "<u4", 52),  # string id; what launched it, as of an allocation
    ("module", "<u4", 56),  # string id
    ("stack", "<u4", 60),  # stack id
    ("thread", "<u4", 64),  # kernel thread id; 0: not known
    ("stream", "<u4", 68),  # CUPTI's number of it
    ("correlation", "<u4", 72),  # CUPTI's number of the launch
    ("step", "<i4", 76),  # of the launch; -1: not known
    ("device", "<i2", 80),
    ("kind", "u1", 82),  # index into _core.GPU_KINDS
    ("phase", "u1", 83),  # index into _core.PHASES
)
"""What ran on a GPU: ``mp_gpu_work_t`` of ``csrc/gpu_work.h``, 88 bytes."""

NOT_COUNTED = 0x100 | 0x200
"""MP_FLAG_FOREIGN, MP_FLAG_GRAPH: such a row stands for 0 bytes in a sum."""

TOTAL_DTYPE = _rows(
    96,
    ("time_ns", "<i8", 0),  # when measuring began
    ("event", "<i8", 8),  # its event; -1: it is in no recording
    ("process_bytes", "<i8", 16),  # these and the next: -1 is not measured
    ("device_used_bytes", "<i8", 24),  # total - free: everybody's, and reserved
    ("device_total_bytes", "<i8", 32),
    ("device_reserved_bytes", "<i8", 40),  # by driver and firmware
    ("pool_reserved_bytes", "<i8", 48),  # the device's default memory pool,
    ("pool_used_bytes", "<i8", 56),  # cudaMallocAsync's
    ("cost_ns", "<i8", 64),  # how long measuring took
    ("step", "<i4", 72),
    ("sample", "<u4", 76),  # equal: measured in one go
    ("device", "<i2", 80),
    ("method", "u1", 82),  # index into _core.TOTAL_METHODS
    ("why", "u1", 83),  # index into _core.TOTAL_WHYS: no process_bytes
    ("device_method", "u1", 84),  # of device_used_bytes
    ("device_why", "u1", 85),
    ("cause", "u1", 86),  # index into _core.TOTAL_CAUSES
    ("memory", "u1", 87),  # index into _core.TOTAL_MEMORIES
    ("made_reserved_bytes", "<i8", 88),  # by pools of cuMemPoolCreate that were heard
)
"""What was measured of a device: ``mp_total_t`` of ``csrc/total.h``, 96 bytes."""

OP_DTYPE = _rows(
    24,
    ("name", "<u4", 0),  # string id; outside of ops: NO_INDEX
    ("stack", "<u4", 4),  # a stack that begins with the row's frames
    ("kind", "u1", 8),  # index into _core.OP_KINDS
    ("top", "u1", 9),  # some call was inside no other op or region
    ("calls", "<i8", 16),  # that touched memory of any device
)
"""A row of the operator table: ``mp_op_row_t`` of ``csrc/op_table.h``, 24 bytes."""

OP_BYTES_DTYPE = _rows(
    56,
    ("self_allocated", "<i8", 0),
    ("self_freed", "<i8", 8),
    ("self_peak", "<i8", 16),  # the highest above a call's beginning
    ("allocated", "<i8", 24),
    ("freed", "<i8", 32),
    ("peak", "<i8", 40),
    ("calls", "<i8", 48),  # that touched memory of this device
)
"""The same row on one device: ``mp_op_bytes_t`` of ``csrc/op_table.h``, 56 bytes."""

STEPS_DTYPE = np.dtype(
    [
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("begin_event", "<i8"),
        ("end_event", "<i8"),
    ]
)
"""A row of ``Recording.steps``."""

PHASES_DTYPE = np.dtype(
    [
        ("name", "<U9"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("begin_event", "<i8"),
        ("end_event", "<i8"),
    ]
)
"""A row of ``Recording.phases``."""

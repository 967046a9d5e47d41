"""Whether a file is a whole shared library.

The loader maps a file as its header says. What is cut off behind that is found
when it is touched, and ends the process (SIGBUS): so look before loading.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

_SHARED = 3  # ET_DYN
_LOAD = 1  # PT_LOAD
_ORDER = "<" if sys.byteorder == "little" else ">"
# e_type machine version entry phoff shoff flags ehsize phentsize phnum
# shentsize shnum shstrndx, behind the 16 bytes of e_ident
_HEADER = struct.Struct(_ORDER + "16sHHIQQQIHHHHHH")
# p_type flags offset vaddr paddr filesz memsz align
_SEGMENT = struct.Struct(_ORDER + "IIQQQQQQ")


def why_not_whole(path: Path) -> str:
    """Return why the file is no whole 64-bit shared library of here, or ``""``."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER.size)
            if not size:
                return "it is empty"
            order = 1 if sys.byteorder == "little" else 2
            if head[:6] != b"\x7fELF\x02" + bytes([order]):
                return "it is no shared library"
            if len(head) < _HEADER.size:
                return f"it is cut off after {size} bytes"
            fields = _HEADER.unpack(head)
            kind, segments_at, sections_at = fields[1], fields[5], fields[6]
            segments, section_size, sections = fields[10], fields[11], fields[12]
            if kind != _SHARED:
                return "it is no shared library"
            end = sections_at + section_size * sections
            file.seek(segments_at)
            for _ in range(segments):
                row = file.read(_SEGMENT.size)
                if len(row) < _SEGMENT.size:
                    return f"it is cut off after {size} bytes"
                segment = _SEGMENT.unpack(row)
                if segment[0] == _LOAD:
                    end = max(end, segment[2] + segment[5])
    except OSError as problem:
        return problem.strerror or str(problem)
    return f"it is cut off: {size} of {end} bytes" if size < end else ""

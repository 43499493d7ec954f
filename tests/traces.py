"""A trace written by hand, for tests of what reads one."""

import struct

TAKE, MOVE_FROM, MOVE_TO, GIVE = 1, 4, 5, 6  # enum record_kind of native/bench/trace.h


def write_trace(path, records):
    """A trace of (kind, thread, address, size), as trace.h lays it out."""
    whole = 1 << 64
    header = b"HAKTRACE" + struct.pack("<IIQQQII16s", 1, 16, len(records), len(records), 0, 1, 1, b"program")
    data = b""
    for kind, thread, address, size in records:
        first, second = address | thread << 48, size | kind << 46
        check = (first * 0x9E3779B97F4A7C15 ^ second) * 0xD6E8FEB86659FD93 % whole >> 49
        data += struct.pack("<QQ", first, second | check << 49)
    path.write_bytes(header + data)

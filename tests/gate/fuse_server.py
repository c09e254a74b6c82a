"""A FUSE server of a user's own: a directory with one file in it. Standard library only, run as a program.

Its mount and its open /dev/fuse come from root, as fusermount gives them (``tests/gate/fuse.py``). It answers
until its standard input says something, and from then on it reads what it is asked and answers nothing: who
asked waits in the kernel, where no signal reaches it. Protocol: linux/fuse.h, version 7.31.
"""

import os
import select
import struct
import sys

HEADER = struct.Struct("=IIQQIIII")
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 25, 26, 27, 28, 29, 34, 36, 42
UNANSWERED = {FORGET, BATCH_FORGET, INTERRUPT}
ENOENT, ENOSYS = 2, 38
ROOT, FILE = 1, 2
NAME = b"file"
DIRECTORY_MODE, FILE_MODE = 0o40755, 0o100644
DIRECTORY_TYPE, FILE_TYPE = 4, 8


class Server:
    def __init__(self, descriptor: int, text: bytes) -> None:
        self._descriptor = descriptor
        self._text = text
        self._silent = False

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([self._descriptor, *([] if self._silent else [0])], [], [])
            if 0 in ready:
                self._silent = True
                os.write(1, b"silent\n")
                continue
            data = os.read(self._descriptor, 1 << 18)
            _, opcode, unique, node, *_ = HEADER.unpack_from(data)
            if self._silent or opcode in UNANSWERED:
                continue
            error, answer = self._answer(opcode, node, data[HEADER.size :])
            os.write(self._descriptor, struct.pack("=IiQ", 16 + len(answer), -error, unique) + answer)
            if opcode == INIT:
                os.write(1, b"serving\n")  # before that, who asks waits as for any answer, and can be killed

    def _answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        match opcode:
            case 26:  # INIT
                return 0, struct.pack("=IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, *[0] * 8)
            case 1:  # LOOKUP
                if body.rstrip(b"\0") != NAME:
                    return ENOENT, b""
                return 0, struct.pack("=QQQQII", FILE, 0, 0, 0, 0, 0) + self._attributes(FILE)
            case 3:  # GETATTR
                return 0, struct.pack("=QII", 0, 0, 0) + self._attributes(node)
            case 14 | 27:  # OPEN, OPENDIR
                return 0, struct.pack("=QII", 0, 0, 0)
            case 15:  # READ
                _, offset, size = struct.unpack_from("=QQI", body)
                return 0, self._text[offset : offset + size]
            case 28:  # READDIR
                _, offset, _ = struct.unpack_from("=QQI", body)
                return 0, b"" if offset else self._entries()
            case 17:  # STATFS
                return 0, struct.pack("=QQQQQIIII6I", 0, 0, 0, 0, 0, 512, 255, 512, 0, *[0] * 6)
            case 18 | 29 | 25 | 34:  # RELEASE, RELEASEDIR, FLUSH, ACCESS
                return 0, b""
        return ENOSYS, b""

    def _attributes(self, node: int) -> bytes:
        """Nothing is to be remembered by the kernel: all times of validity are 0."""
        mode, size = (DIRECTORY_MODE, 0) if node == ROOT else (FILE_MODE, len(self._text))
        owner = (os.getuid(), os.getgid())
        return struct.pack("=QQQQQQIIIIIIIIII", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, *owner, 0, 512, 0)

    def _entries(self) -> bytes:
        return self._entry(ROOT, 1, DIRECTORY_TYPE, b".") + self._entry(FILE, 2, FILE_TYPE, NAME)

    def _entry(self, node: int, offset: int, kind: int, name: bytes) -> bytes:
        entry = struct.pack("=QQII", node, offset, len(name), kind) + name
        return entry + bytes(-len(entry) % 8)


def main() -> None:
    descriptor, uid, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    Server(descriptor, text).run()


if __name__ == "__main__":
    main()

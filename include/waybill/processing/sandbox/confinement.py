"""What a process of user code gives up before it runs any: files, network, other processes, uid.

Landlock takes away the files and TCP, a seccomp filter the system calls that reach beyond the
process (sockets, new processes, signals to others, tracing, mounts …) or change modes and times of
files, which Landlock leaves open to their owner; both need no privileges.
Started as root, the process takes a uid of its own and loses all capabilities. Limits bound memory,
CPU, files. What a machine does not have is left out and named: `waybill doctor` shows it.

Source: Linux's Documentation/userspace-api/landlock.rst and seccomp_filter.rst. There is no kept
library: PyPI's ``landlock`` is a development release, ``pyseccomp`` needs a system library.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

OFFLINE_ERRNO = 64
"""ENONET, "Machine is not on the network": what ``socket`` answers where the network is closed."""
_MiB = 1024**2
_OPEN_FILES = 256
_THREADS = 512
"""Of all processes of one team on a machine; only where they have a uid of their own."""
_UIDS = ((1 << 20, 1 << 30), (20_000, 40_000))
"""(first, how many); the smaller ones where a container has only 65,536."""


class Limits(msgspec.Struct, frozen=True):
    """What one process may use."""

    memory_mb: int
    """Private memory, in MiB."""
    file_mb: int
    """Size of one file, in MiB."""
    cpu_s: int
    """CPU time of its life, in seconds; the kernel ends it then."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a process is confined.

    Args:
        folder: its own; the only place where it may write.
        readable: files and folders that it may read, beside Python's own.
        limits: of what it uses.
        network: whether it may open connections.
        owner: whose code it is; what has one owner has one uid.
    """

    folder: str
    readable: Sequence[str]
    limits: Limits
    network: bool
    owner: str

    def apply(self) -> list[str]:
        """Confine this process, for good; return in words what the machine does not allow.

        It must have one thread, and be the leader of no others.
        """
        missing: list[str] = []
        if not _ends_first():
            missing.append("early end where memory runs out (oom_score_adj)")
        _limit(self.limits)
        closed = _landlock_version() > 0
        if os.geteuid() == 0 and not self._drop_root(closed=closed):
            missing.append("a user of its own (started as root, whose files Python is among)")
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        rules = [(path, _READ) for path in (*_python(), *_SYSTEM, *self.readable)]
        rules += [(path, _READ | _WRITE_FILE) for path in _DEVICES]
        rules.append(("/dev/zero", _READ))  # who may write maps it as memory that no limit counts
        if not _landlock([*rules, (self.folder, _ALL)], network=self.network):
            missing.append("closed files (Landlock, Linux 5.13 or newer)")
        if not _filter_calls(network=self.network):
            missing.append("closed system calls (seccomp on x86-64 or ARM64)")
        return missing

    def _drop_root(self, *, closed: bool) -> bool:
        """Become a user of its own, without capabilities.

        Where Python itself is readable by root only, one is kept, to read all files: Landlock
        closes all but those that are named.
        """
        readable = all(_is_open_to_all(path) for path in (*_python(), *self.readable))
        owned = (readable or closed) and any(
            self._become(first + _digest(self.owner) % count) for first, count in _UIDS
        )
        _keep_capabilities(0 if readable else _CAP_DAC_READ_SEARCH)
        return owned

    def _become(self, uid: int) -> bool:
        """Become a user; tell whether there is one of that number here."""
        try:
            os.chown(self.folder, uid, uid)
            os.setgroups([])
            resource.setrlimit(resource.RLIMIT_NPROC, (_THREADS, _THREADS))
            os.setresgid(uid, uid, uid)
            _prctl(_PR_SET_KEEPCAPS, 1)
            os.setresuid(uid, uid, uid)
        except OSError:
            return False
        return True


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def close_files(folder: str, readable: Sequence[str], executable: Sequence[str]) -> bool:
    """Close all files but these to this process and all that it starts, for good.

    For programs of others, which start processes of their own: nothing else is closed.

    Args:
        folder: it may do everything there.
        readable: files and folders that may be read, beside the system's own.
        executable: the same, and programs in there may be started.

    Returns:
        False: the machine has no Landlock; nothing is closed.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    rules = [(path, _READ) for path in (*_python(), *_SYSTEM, *readable)]
    rules += [(path, _READ | _EXECUTE) for path in executable]
    rules += [(path, _READ | _WRITE_FILE) for path in (*_DEVICES, "/dev/zero")]
    return _landlock([*rules, (folder, _ALL)], network=True)


def _digest(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _is_open_to_all(path: str) -> bool:
    """Tell whether every user may read a path, by the mode of it and of all above it."""
    try:
        readable = Path(path).stat().st_mode & 0o004
        return bool(readable) and all(one.stat().st_mode & 0o001 for one in Path(path).parents)
    except OSError:
        return True  # it is not there for anybody


def _ends_first() -> bool:
    """Have the kernel end this process before the platform's where memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    except OSError:
        return False
    return True


def _limit(limits: Limits) -> None:
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, limits.memory_mb * _MiB),
        (resource.RLIMIT_FSIZE, limits.file_mb * _MiB),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CPU, limits.cpu_s),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)  # noqa: PLW2901
        resource.setrlimit(kind, (most, most))


def _python() -> Iterator[str]:
    """Yield where Python, its packages and Waybill's own code are."""
    import waybill

    for prefix in (sys.prefix, sys.base_prefix):
        yield from (f"{prefix}/{name}" for name in ("lib", "lib64", "pyvenv.cfg"))
    package = Path(waybill.__file__ or "").parent
    yield str(package)
    for entry in sys.path:
        path = Path(entry or ".")
        if path.is_file() or path.name in {"site-packages", "dist-packages"}:  # archives, packages
            yield str(path)


_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo",
    "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/etc/ld.so.cache",
    "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust", "/etc/hosts", "/etc/resolv.conf",
    "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/localtime",
    "/etc/timezone", "/etc/mime.types",
)  # fmt: skip
"""Libraries, time zones, public certificates, names of hosts; no home of any application."""
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)
_CAP_DAC_READ_SEARCH = 1 << 2
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38


def _prctl(option: int, *values: int) -> None:
    given = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *given) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def _keep_capabilities(kept: int) -> None:
    """Give up all capabilities but these."""
    header = struct.pack("<Ii", 0x20080522, 0)
    if _libc.capset(header, struct.pack("<6I", kept, kept, 0, 0, 0, 0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


# Landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_READ = _READ_FILE | _READ_DIR
_ALL = (1 << 16) - 1
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Rights that a version of Landlock knows, from that version on."""
_BIND_TCP, _CONNECT_TCP = 1, 2
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6


def _landlock_version() -> int:
    return int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _landlock(rules: Iterable[tuple[str, int]], *, network: bool) -> bool:
    """Close all files but those of the rules; tell whether the machine has Landlock."""
    version = _landlock_version()
    if version < 1:
        return False
    known = max(rights for since, rights in _RIGHTS.items() if since <= version)
    attributes = struct.pack("<Q", known)
    if version >= _NETWORK_SINCE:
        attributes += struct.pack("<Q", _BIND_TCP if network else _BIND_TCP | _CONNECT_TCP)
    if version >= _SCOPES_SINCE:
        attributes += struct.pack("<Q", 3)  # abstract sockets and signals of others
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & known)
        return bool(_libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Open a path and all below it; one that is not there stays closed."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - of the same kind as the call before
            rights &= _OF_FILES
        rule = struct.pack("<Qi", rights, place)
        _libc.syscall(_ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(place)


# seccomp

_EPERM, _ENOTTY, _ENOSYS, _EOPNOTSUPP = 1, 25, 38, 95
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_FIRST, _SECOND, _THIRD, _FOURTH = 16, 24, 32, 40
"""Offsets in ``struct seccomp_data``; of arguments: their lower halves."""
_X32 = 0x40000000
_UNKNOWN = 468
"""The first system call that is newer than these tables: of Linux 6.17."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def _table(text: str) -> dict[str, dict[str, int]]:
    """Read lines "name x86-64 ARM64"; "-": the architecture has no such call."""
    found: dict[str, dict[str, int]] = {}
    for name, *numbers in (line.split() for line in text.strip().splitlines()):
        pairs = zip(_ARCHITECTURES, numbers, strict=True)
        found[name] = {machine: int(number) for machine, number in pairs if number != "-"}
    return found


_REFUSED = _table("""
fork 57 -
vfork 58 -
execve 59 221
execveat 322 281
ptrace 101 117
process_vm_readv 310 270
process_vm_writev 311 271
process_madvise 440 440
process_mrelease 448 448
pidfd_open 434 434
pidfd_getfd 438 438
pidfd_send_signal 424 424
kcmp 312 272
tkill 200 130
rt_sigqueueinfo 129 138
rt_tgsigqueueinfo 297 240
setpriority 141 140
ioprio_set 251 30
migrate_pages 256 238
move_pages 279 239
mount 165 40
umount2 166 39
pivot_root 155 41
chroot 161 51
move_mount 429 429
open_tree 428 428
fsopen 430 430
fsconfig 431 431
fsmount 432 432
fspick 433 433
mount_setattr 442 442
unshare 272 97
setns 308 268
bpf 321 280
perf_event_open 298 241
userfaultfd 323 282
io_uring_setup 425 425
io_uring_enter 426 426
io_uring_register 427 427
keyctl 250 219
add_key 248 217
request_key 249 218
kexec_load 246 104
kexec_file_load 320 294
init_module 175 105
finit_module 313 273
delete_module 176 106
reboot 169 142
swapon 167 224
swapoff 168 225
acct 163 89
quotactl 179 60
syslog 103 116
settimeofday 164 170
clock_settime 227 112
adjtimex 159 171
clock_adjtime 305 266
sethostname 170 161
setdomainname 171 162
open_by_handle_at 304 265
name_to_handle_at 303 264
shmget 29 194
shmat 30 196
shmctl 31 195
semget 64 190
semctl 66 191
semop 65 193
semtimedop 220 192
msgget 68 186
msgctl 71 187
msgsnd 69 189
msgrcv 70 188
mq_open 240 180
mq_unlink 241 181
memfd_create 319 279
memfd_secret 447 447
timer_create 222 107
chmod 90 -
fchmod 91 52
fchmodat 268 53
fchmodat2 452 452
chown 92 -
fchown 93 55
lchown 94 -
fchownat 260 54
utime 132 -
utimes 235 -
futimesat 261 -
utimensat 280 88
setxattr 188 5
lsetxattr 189 6
fsetxattr 190 7
setxattrat 463 463
removexattr 197 14
lremovexattr 198 15
fremovexattr 199 16
removexattrat 466 466
truncate 76 45
inotify_init 253 -
inotify_init1 294 26
inotify_add_watch 254 27
fanotify_init 300 262
fanotify_mark 301 263
quotactl_fd 443 443
statmount 457 457
listmount 458 458
open_tree_attr 467 467
lookup_dcookie 212 18
personality 135 92
iopl 172 -
ioperm 173 -
""")
"""Refused with EPERM. What changes modes, owners, times and attributes of files is among them:
Landlock covers none, and as another user than root, files of the platform have the same owner. A
timer could wake a process that is stopped between its batches."""
_OF_ITSELF = _table("""
kill 62 129
tgkill 234 131
prlimit64 302 261
sched_setaffinity 203 122
sched_setscheduler 144 119
sched_setparam 142 118
sched_setattr 314 274
""")
"""Refused but for this process itself: the first argument is its pid, or 0: for ``kill`` its group,
where it is alone."""
_SPECIAL = _table("""
mmap 9 222
fcntl 72 25
ioctl 16 29
prctl 157 167
clone 56 220
clone3 435 435
close_range 436 436
fallocate 285 47
socket 41 198
socketpair 53 199
sendmsg 46 211
sendmmsg 307 269
""")
_OPEN_FAMILIES = (2, 10)
"""AF_INET and AF_INET6: what a pipeline may open that declares the network; nothing local."""
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN = 0x01, 0x20, 0x100
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_CLOSE_RANGE_UNSHARE = 2
_F_SETFL, _O_ASYNC = 4, 0x2000
_SIGNALS_AND_LEASES = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: send a signal to any process of the same user; F_SETLEASE holds
up who opens a file, F_NOTIFY watches a folder."""
_OPEN_IOCTLS = (0x541B, 0x5421, 0x5450, 0x5451, 0x5401, 0x5413)
"""FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS, TIOCGWINSZ."""
_PR_SET_DUMPABLE = 4
_AF_UNIX, _NO_STREAM = 1, 0xE
"""Bits of all types of sockets but SOCK_STREAM: one for datagrams sends to any path."""


def _machine() -> str:
    return platform.machine()


def _filter_calls(*, network: bool) -> bool:
    """Refuse system calls that reach beyond this process; tell whether the machine can."""
    machine = _machine()
    if machine not in _ARCHITECTURES or sys.byteorder != "little":
        return False
    program = b"".join(_program(machine, os.getpid(), network=network))
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    given = ctypes.create_string_buffer(head, len(head))
    try:
        _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(given))
    except OSError:
        return False
    return True


def _program(machine: str, pid: int, *, network: bool) -> Iterator[bytes]:
    """Yield the instructions of the filter."""
    yield _step(_LOAD, _ARCHITECTURE)
    yield _step(_EQUAL, _ARCHITECTURES[machine], 1, 0)
    yield _step(_RETURN, _KILL)
    yield _step(_LOAD, _NUMBER)
    if machine == "x86_64":
        yield _step(_AT_LEAST, _X32, 0, 1)
        yield _end(_EPERM)
    yield _step(_AT_LEAST, _UNKNOWN, 0, 1)
    yield _end(_ENOSYS)
    for name, body in _bodies(network=network).items():
        yield from _where(_SPECIAL[name][machine], body)
    for number in _numbers(_REFUSED, machine):
        yield from _where(number, [_end(_EPERM)])
    for number in _numbers(_OF_ITSELF, machine):
        yield from _where(number, [*_unless_argument_is(_FIRST, 0, pid), _end(_EPERM), _end(0)])
    yield _end(0)


def _bodies(*, network: bool) -> dict[str, list[bytes]]:
    """Return what is done for calls whose arguments decide, the frequent ones first."""
    refuse, allow = _end(_EPERM), _end(0)
    shared = [_step(_ANY_BIT, _MAP_ANONYMOUS, 0, 2), _step(_ANY_BIT, _MAP_SHARED, 0, 1)]
    asynchronous = [_step(_LOAD, _THIRD), _step(_ANY_BIT, _O_ASYNC, 0, 1)]
    threads = [_step(_ANY_BIT, _CLONE_THREAD, 0, 1), _step(_ANY_BIT, _CLONE_FILES, 1, 0)]
    stream = [_step(_LOAD, _SECOND), _step(_ANY_BIT, _NO_STREAM, 0, 1)]
    bodies = {
        "mmap": [
            _step(_LOAD, _FOURTH), _step(_ANY_BIT, _MAP_GROWSDOWN, 2, 0), *shared, refuse, allow
        ],
        "fcntl": [
            *_unless_argument_is(_SECOND, *_SIGNALS_AND_LEASES, past=3),
            _step(_EQUAL, _F_SETFL, 0, 3), *asynchronous, refuse, allow,
        ],
        "ioctl": [*_unless_argument_is(_SECOND, *_OPEN_IOCTLS), _end(_ENOTTY), allow],
        "prctl": [
            *_unless_argument_is(_FIRST, _PR_SET_PDEATHSIG, _PR_SET_DUMPABLE), allow, refuse
        ],
        "clone": [_step(_LOAD, _FIRST), *threads, refuse, allow],
        "clone3": [_end(_ENOSYS)],  # libc takes clone then
        "fallocate": [_end(_EOPNOTSUPP)],  # takes a disk in no time; libc writes then
        "close_range": [
            _step(_LOAD, _THIRD), _step(_ANY_BIT, _CLOSE_RANGE_UNSHARE, 0, 1), refuse, allow
        ],
        "socketpair": [
            _step(_LOAD, _FIRST), _step(_EQUAL, _AF_UNIX, 0, 2), *stream, refuse, allow
        ],
        "socket": [_end(OFFLINE_ERRNO)],
    }  # fmt: skip
    if network:
        bodies["socket"] = [*_unless_argument_is(_FIRST, *_OPEN_FAMILIES), refuse, allow]
        return bodies
    return bodies | {"sendmsg": [refuse], "sendmmsg": [refuse]}  # a file on its way has no owner


def _numbers(table: dict[str, dict[str, int]], machine: str) -> list[int]:
    return [numbers[machine] for numbers in table.values() if machine in numbers]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """Return an instruction; ``yes`` and ``no``: how many are passed over."""
    return struct.pack("<HBBI", code, yes, no, value)


def _end(errno: int) -> bytes:
    return _step(_RETURN, _ERRNO | errno if errno else _ALLOW)


def _where(number: int, body: list[bytes]) -> Iterator[bytes]:
    """Yield what is done for one call; ``body`` ends it."""
    yield _step(_EQUAL, number, 0, len(body))
    yield from body


def _unless_argument_is(place: int, *values: int, past: int = 1) -> list[bytes]:
    """Return what passes over the next instructions where an argument is one of these values."""
    last = len(values) - 1
    tests = [_step(_EQUAL, value, last - at + past, 0) for at, value in enumerate(values)]
    return [_step(_LOAD, place), *tests]

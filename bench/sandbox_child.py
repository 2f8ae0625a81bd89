"""The other side of ``bench.sandbox``: shuts itself in, then runs an answer and measures it.

A program, not a module to import: only the standard library is here. It reads its job (JSON) from
stdin, writes one JSON line per call to what was stdout, and never returns to anything of ours once
the answer has run: whatever the answer changed in this interpreter stays here.
"""

# What answers usually import is imported before the filter is on, so that it costs no system call
# that the filter has to allow.
import ctypes
import dataclasses  # noqa: F401
import decimal  # noqa: F401
import json
import os
import platform
import resource
import stat
import struct
import sys
import types
import typing

NOBODY = 65534
# The system calls that computing, importing and printing need: Linux's numbers on x86_64 and
# aarch64. Not among them: processes, threads, signals, sockets, ioctl, all that changes a file.
_CALLS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "newfstatat": (262, 79),
    "statx": (332, 291), "lseek": (8, 62), "pread64": (17, 67), "readv": (19, 65),
    "writev": (20, 66), "getdents64": (217, 61), "readlinkat": (267, 78), "faccessat": (269, 48),
    "faccessat2": (439, 439), "getcwd": (79, 17), "mmap": (9, 222), "munmap": (11, 215),
    "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233), "brk": (12, 214),
    "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "getrandom": (318, 278), "uname": (63, 160), "getpid": (39, 172),
    "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "exit": (60, 93), "exit_group": (231, 94),
    "stat": (4, None), "lstat": (6, None), "access": (21, None), "readlink": (89, None),
    "time": (201, None),
}  # fmt: skip
_MACHINES = ("x86_64", "aarch64")
_ARCHITECTURE = (0xC000003E, 0xC00000B7)
_OPENAT, _FCNTL = (257, 56), (72, 25)
_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # refused: EPERM
_SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _FILTER = 4, 22, 38, 2
_GETFD, _GETFL = 1, 3
# Landlock: the same numbers everywhere; every right of its first version
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _BENEATH = 444, 445, 446, 1
_EVERY_RIGHT, _READ_FILE, _READ_FOLDER = 0x1FFF, 0x4, 0x8
_READABLE = (
    os.path.join(sys.base_prefix, "lib"),
    os.path.join(sys.base_prefix, sys.platlibdir),
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"),
    *("/dev/null", "/dev/urandom"),
)


def shut_in(memory: int, cpu: int) -> None:
    """Limit this process: resources, then rights, then system calls.

    Raises OSError: the system gives no filter, or nobody may not read the standard library.
    """
    for limit, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(limit, (value, value))
    readable = [os.open(path, os.O_PATH) for path in _READABLE if os.path.exists(path)]
    if os.geteuid() == 0:
        become_nobody()
    # After the change of user, whose processes would count against the limit.
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    prctl(_SET_NO_NEW_PRIVS, 1)
    confine_reading(readable)
    filter_calls()


def become_nobody() -> None:
    """Give up being root. The standard library stays in reach, also below a closed /root."""
    opened = {}
    for path in filter(os.path.isdir, sys.path):
        opened[path] = f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_DIRECTORY)}"
    sys.path[:] = opened.values()
    longest_first = sorted(opened, key=len, reverse=True)
    for module in list(sys.modules.values()):
        for at, path in enumerate(getattr(module, "__path__", ())):
            base = next((base for base in longest_first if path.startswith(base + "/")), None)
            if base is not None:
                module.__path__[at] = opened[base] + path[len(base) :]
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    prctl(_SET_DUMPABLE, 1)  # or /proc/self would be root's
    for path in sys.path:
        os.listdir(path)


def prctl(*arguments: typing.Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [*arguments, 0, 0, 0, 0][:5]
    if libc.prctl(
        *(ctypes.c_ulong(value) if isinstance(value, int) else value for value in padded)
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {arguments[0]}: {os.strerror(number)}")


def confine_reading(readable: list[int]) -> None:
    """Let nothing be read but what is below these open files and folders, where the kernel has
    Landlock. Other processes cannot be looked into either, whoever they belong to.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    rights = struct.pack("Q", _EVERY_RIGHT)
    zero = ctypes.c_long(0)
    ruleset = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), rights, ctypes.c_size_t(len(rights)), zero
    )
    if ruleset < 0:
        return
    for file in readable:
        folder = stat.S_ISDIR(os.fstat(file).st_mode)
        rule = struct.pack("=Qi", _READ_FILE | (_READ_FOLDER if folder else 0), file)
        if libc.syscall(ctypes.c_long(_ADD_RULE), ctypes.c_long(ruleset),
                        ctypes.c_long(_BENEATH), rule, zero):  # fmt: skip
            raise OSError(ctypes.get_errno(), "Landlock takes no rule")
        os.close(file)
    if libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_long(ruleset), zero):
        raise OSError(ctypes.get_errno(), "Landlock does not restrict")
    os.close(ruleset)


def filter_calls() -> None:
    """Let the kernel refuse every system call that is not in the list, for good."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(f"no list of system calls for {machine}")
    which = _MACHINES.index(machine)
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHITECTURE[which]), (_RETURN, 0, 0, _KILL)]
    program += [(_LOAD, 0, 0, 0)]
    for numbers in _CALLS.values():
        number = numbers[which]
        if number is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    # fcntl(…, command): only to ask; it could also send signals
    program += [(_EQUAL, 0, 5, _FCNTL[which]), (_LOAD, 0, 0, 24), (_EQUAL, 2, 0, _GETFD)]
    program += [(_EQUAL, 1, 0, _GETFL), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    # openat(…, …, flags): only to read
    program += [(_EQUAL, 0, 4, _OPENAT[which]), (_LOAD, 0, 0, 32), (_AND, 0, 0, _WRITING)]
    program += [(_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    )
    prctl(_SET_SECCOMP, _FILTER, ctypes.byref(whole))


def plain_value(value: typing.Any) -> typing.Any:
    """``value`` if JSON says it as it is, a string as a string; else TypeError."""
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) in (list, tuple):
        return [plain_value(item) for item in value]
    raise TypeError(f"a {type(value).__name__} is no plain value")


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    def say(line: object) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")

    try:
        shut_in(job["memory"], job["cpu"])
    except OSError as error:
        say({"unsafe": str(error)})
        os._exit(1)
    say({"safe": True})
    module = types.ModuleType("answer")  # dataclasses look their module up
    sys.modules["answer"] = module
    instrument: dict[str, typing.Any] = {}
    try:
        exec(compile(job["instrument"], "<instrument>", "exec"), instrument)
        for source in job["sources"]:
            exec(compile(source, "<answer>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        say({"failed": type(error).__name__})
        os._exit(0)
    for index, (name, arguments) in enumerate(job["calls"]):
        try:
            value = plain_value(instrument[name](module.__dict__, *arguments))
            line = json.dumps({"call": index, "value": value})
        except BaseException as error:
            line = json.dumps({"call": index, "error": type(error).__name__})
        os.write(out, line.encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()

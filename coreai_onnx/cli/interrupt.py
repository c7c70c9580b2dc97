"""Detection of Ctrl-C, also inside of imports, and of other signals that end a process."""

from __future__ import annotations

import signal

EXIT_CODE = 130
"""Exit code of a program that was ended by SIGINT: 128 + 2."""


def interrupt_at_signals() -> None:
    """Let SIGTERM and SIGHUP interrupt this process as Ctrl-C does.

    Python ends without leaving its blocks otherwise, and the files of an export would remain.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup ignores SIGHUP.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def interrupted(error: BaseException | None) -> bool:
    """Return whether an error is a Ctrl-C or was caused by one, for example inside an import."""
    # Code that raises a stored error again can make a chain that ends in itself.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False

# SPDX-License-Identifier: Apache-2.0
"""Another user, for a block of a test that runs as root."""

import grp
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    group: str
    more_groups: tuple[str, ...] = ()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """This process with the rights of the user: those that files, buses and djinnd look at."""
        groups = os.getgroups()
        os.setgroups([grp.getgrnam(name).gr_gid for name in self.more_groups])
        os.setegid(grp.getgrnam(self.group).gr_gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

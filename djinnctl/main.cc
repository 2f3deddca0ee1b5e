// SPDX-License-Identifier: Apache-2.0

// djinnctl: the administrator's and the script's tool. What it can do: command_line.h.
#include <fcntl.h>
#include <unistd.h>

#include "djinnctl/command_line.h"

namespace {

// A caller may have closed some of them; what is opened next must not take their place.
void keep_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_descriptors();
  return djinn::ctl::run(argc, argv);
}

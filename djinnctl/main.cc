// SPDX-License-Identifier: Apache-2.0

// djinnctl is the tool of administrators and scripts. command_line.h says what it can do.
#include <fcntl.h>
#include <unistd.h>

#include "djinnctl/command_line.h"

namespace {

// The caller may have closed some of these descriptors. What is opened next must not take their
// place.
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

// djinnctl: the administrator's and the script's tool. What it can do: command_line.h.
#include "djinnctl/command_line.h"

int main(int argc, char** argv) {
  return djinn::ctl::run(argc, argv);
}

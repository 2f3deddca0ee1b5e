// SPDX-License-Identifier: Apache-2.0

// emb MODEL ID...: the first numbers of a sentence's embedding. From djinn.hpp(3).
#include <cstdio>
#include <cstdlib>
#include <djinn.hpp>
#include <exception>
#include <vector>

int main(int argc, char** argv) {
  try {
    std::vector<int64_t> ids;
    for (int i = 2; i < argc; ++i) ids.push_back(std::atoll(argv[i]));
    djinn::Client client;
    djinn::Encoder encoder(client, argv[1]);
    const auto row = encoder.encode({.ids = ids,
                                     .rows = 1,
                                     .tokens = static_cast<uint32_t>(ids.size()),
                                     .mask = {},
                                     .types = {}});
    for (int i = 0; i < 4; ++i) std::printf("%.6f\n", row[i]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "emb: %s\n", error.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0

// How alike are two sentences? With djinn.hpp: handles close themselves, errors are exceptions.
//
//   alike MODEL_DIRECTORY "ID ID ..." "ID ID ..."
//
// MODEL_DIRECTORY is a Hugging Face bert model; the ids are what its tokenizer made of each
// sentence. The only library that this needs: c++ -std=c++20 alike.cc -ldjinn-client
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <djinn.hpp>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::vector<int64_t> ids_in(std::string_view text) {
  std::vector<int64_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    at = std::find_if(at, end, [](char one) { return one != ' '; });
    if (at == end) return ids;
    const auto [stop, failed] = std::from_chars(at, end, ids.emplace_back());
    if (failed != std::errc() || (stop != end && *stop != ' ')) {
      throw std::invalid_argument("A sentence is token ids with blanks between.");
    }
    at = stop;
  }
}

// Both sentences go into one batch. The shorter one is padded on the right.
float likeness(djinn::Encoder& encoder, std::vector<int64_t> one, std::vector<int64_t> other) {
  const size_t tokens = std::max(one.size(), other.size());
  std::vector<int64_t> ids;
  std::vector<int64_t> mask;
  for (std::vector<int64_t>* const row : {&one, &other}) {
    mask.insert(mask.end(), row->size(), 1);
    mask.insert(mask.end(), tokens - row->size(), 0);
    row->resize(tokens);
    ids.insert(ids.end(), row->begin(), row->end());
  }
  const std::vector<float> rows = encoder.encode(
      {.ids = ids, .rows = 2, .tokens = static_cast<uint32_t>(tokens), .mask = mask, .types = {}});
  const auto second = rows.begin() + encoder.info().hidden;
  return std::inner_product(rows.begin(), second, second, 0.0F);  // they have length 1
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: alike MODEL_DIRECTORY \"ID ID ...\" \"ID ID ...\"\n", stderr);
    return 2;
  }
  try {
    djinn::Client client;
    djinn::Encoder encoder(client, argv[1]);
    const float found = likeness(encoder, ids_in(argv[2]), ids_in(argv[3]));
    std::fputs((std::to_string(found) + "\n").c_str(), stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fputs(("alike: " + std::string(error.what()) + "\n").c_str(), stderr);
    return 1;
  }
}

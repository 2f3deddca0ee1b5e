// SPDX-License-Identifier: Apache-2.0

// This is a client in C++ that outlives its djinnd. It does what it is told on stdin, and says on
// stdout how that went: a line each, "error CODE" where it failed.
//
//   reconnecting MODEL_DIRECTORY
//
//   open         opens a generator, and puts a ref
//   generate     the tokens that it makes
//   read         the ref's text
//   reconnect    waits for a djinnd
#include <stdio.h>
#include <string.h>

#include <array>
#include <djinn.hpp>
#include <memory>
#include <string>

namespace {

constexpr std::string_view kText = "kept";

struct Held {
  Held(djinn::Client& client, const std::string& directory)
      : generator(client, directory), ref(client, std::as_bytes(std::span(kText))) {}

  djinn::Generator generator;
  djinn::Ref ref;
};

std::string generate(Held& held) {
  std::string said;
  djinn_generate_options options = djinn::Generator::defaults();
  options.max_new_tokens = 5;
  held.generator.generate(
      {{256, 'T', 'h', 'e'}},
      [&](uint32_t, uint32_t, int32_t token) {
        said += std::to_string(token) + ' ';
        return true;
      },
      options);
  return said;
}

std::string read(const Held& held) {
  std::array<char, kText.size()> out{};
  held.ref.read(0, std::as_writable_bytes(std::span(out)));
  return {out.begin(), out.end()};
}

}  // namespace

int main(int, char** argv) {
  djinn::Client client;
  std::unique_ptr<Held> held;
  std::array<char, 64> line{};
  while (::fgets(line.data(), line.size(), stdin) != nullptr) {
    const std::string order(line.data(), ::strcspn(line.data(), "\n"));
    std::string answer = "done";
    try {
      if (order == "open") held = std::make_unique<Held>(client, argv[1]);
      if (order == "generate") answer = generate(*held);
      if (order == "read") answer = read(*held);
      if (order == "reconnect") client.reconnect(std::chrono::milliseconds::max());
    } catch (const djinn::Error& error) {
      answer = std::string("error ") + djinn_code_name(error.code());
    }
    ::fputs((answer + "\n").c_str(), stdout);
    ::fflush(stdout);
  }
}

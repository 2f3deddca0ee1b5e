// SPDX-License-Identifier: Apache-2.0

// djinn.hpp: djinn.h for C++20: handles close themselves, errors are exceptions. Header only, so a
// program compiled with it needs nothing of the library but djinn.h.
//
//   djinn::Client client;                       // the user's daemon
//   djinn::Encoder encoder(client, "models/bert");
//   std::vector<float> rows = encoder.encode({.ids = ids, .rows = 2, .tokens = 7});
//
// invariant: what is opened on a Client ends before it, and before the variable that it was moved
// to: never move one into a variable that ends earlier. One thread at a time, as in djinn.h.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "djinn.hpp needs C++20 (std::span): compile with -std=c++20, or use djinn.h."
#else

#include <djinn.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace djinn {
inline namespace v1 {

class Error : public std::runtime_error {
 public:
  explicit Error(const djinn_error& error) : std::runtime_error(error.message), code_(error.code) {}
  [[nodiscard]] djinn_code code() const noexcept { return code_; }

 private:
  djinn_code code_;
};

// Of several rows of an exported model some have failed, and others said something. The error is
// that of the first one that failed; rows(): DJINN_OK of those that are whole.
class RowsError : public Error {
 public:
  RowsError(const djinn_error& error, std::vector<djinn_error> rows)
      : Error(error), rows_(std::move(rows)) {}
  [[nodiscard]] const std::vector<djinn_error>& rows() const noexcept { return rows_; }

 private:
  std::vector<djinn_error> rows_;
};

namespace detail {

// Calls function(arguments..., &error) and throws its error.
template <typename Function, typename... Arguments>
void call(Function function, Arguments... arguments) {
  djinn_error error;
  if (function(arguments..., &error) != DJINN_OK) throw Error(error);
}

// As djinn.h counts it.
inline uint64_t milliseconds(std::chrono::milliseconds time) {
  if (time.count() < 0) throw Error({DJINN_INVALID_ARGUMENT, "A time must not be negative."});
  return time == std::chrono::milliseconds::max() ? DJINN_FOREVER
                                                  : static_cast<uint64_t>(time.count());
}

template <auto close>
struct Closer {
  template <typename Handle>
  void operator()(Handle* handle) const {
    close(handle);
  }
};

}  // namespace detail

class Client {
 public:
  explicit Client(const djinn_connect_options& options = {}) {
    djinn_client* made = nullptr;
    detail::call(djinn_connect, &options, &made);
    handle_.reset(made);
  }

  [[nodiscard]] djinn_client* handle() const noexcept { return handle_.get(); }
  // How long runs may wait for their turn from now on, of an exported model's rows the first; 0 and
  // milliseconds::max(): as long as it takes.
  void set_begin_within(std::chrono::milliseconds within) {
    detail::call(djinn_set_begin_within, handle(), detail::milliseconds(within));
  }
  // A new session in place of one that is over; see djinn.h for what becomes of what it had.
  void reconnect(std::chrono::milliseconds wait = std::chrono::seconds(10)) {
    detail::call(djinn_reconnect, handle(), detail::milliseconds(wait));
  }
  [[nodiscard]] djinn_status status() const {
    djinn_status out;
    detail::call(djinn_get_status, handle(), &out);
    return out;
  }
  [[nodiscard]] uint64_t load_model(const std::string& directory) {
    uint64_t model = 0;
    detail::call(djinn_model_load, handle(), directory.c_str(), &model);
    return model;
  }
  // Stays until it is unloaded.
  [[nodiscard]] uint64_t load_model_pinned(const std::string& directory) {
    uint64_t model = 0;
    detail::call(djinn_model_load_pinned, handle(), directory.c_str(), &model);
    return model;
  }
  // Stays for so long when no session holds it; milliseconds::max(): until memory is wanted.
  [[nodiscard]] uint64_t load_model_keep_alive(const std::string& directory,
                                               std::chrono::milliseconds keep_alive) {
    uint64_t model = 0;
    detail::call(djinn_model_load_keep_alive, handle(), directory.c_str(),
                 detail::milliseconds(keep_alive), &model);
    return model;
  }
  // Ends the call that another thread, or the one whose signal handler this is, is in.
  void cancel() const noexcept { djinn_cancel(handle_.get()); }
  void close_model(uint64_t model) { detail::call(djinn_model_close, handle(), model); }
  void unload_model(uint64_t model) { detail::call(djinn_model_unload, handle(), model); }

 private:
  std::unique_ptr<djinn_client, detail::Closer<djinn_close>> handle_;
};

class Encoder {
 public:
  struct Batch {
    std::span<const int64_t> ids;  // [rows, tokens]
    uint32_t rows = 1;
    uint32_t tokens = 0;
    std::span<const int64_t> mask = {};   // [rows, tokens]; empty: no padding
    std::span<const int64_t> types = {};  // [rows, tokens]; empty: all 0
  };

  Encoder(Client& client, const std::string& directory, const djinn_model_options& options = {}) {
    djinn_encoder* made = nullptr;
    detail::call(djinn_encoder_open_with, client.handle(), directory.c_str(), &options, &made);
    handle_.reset(made);
  }

  [[nodiscard]] djinn_encoder_info info() const { return djinn_encoder_get_info(handle_.get()); }
  // Sentence embeddings [rows, hidden]; hidden: resized to [rows, tokens, hidden] and filled.
  [[nodiscard]] std::vector<float> encode(const Batch& batch,
                                          std::vector<float>* hidden = nullptr) {
    check(batch);
    djinn_batch raw{};
    raw.rows = batch.rows;
    raw.tokens = batch.tokens;
    raw.ids = batch.ids.data();
    raw.mask = batch.mask.empty() ? nullptr : batch.mask.data();
    raw.types = batch.types.empty() ? nullptr : batch.types.data();
    std::vector<float> embeddings(size_t{batch.rows} * info().hidden);
    if (hidden != nullptr) hidden->resize(embeddings.size() * batch.tokens);
    float* const rows = hidden != nullptr ? hidden->data() : nullptr;
    detail::call(djinn_encoder_encode, handle_.get(), &raw, embeddings.data(), rows);
    return embeddings;
  }

 private:
  static void check(const Batch& batch) {
    const size_t cells = size_t{batch.rows} * batch.tokens;
    const auto fits = [cells](std::span<const int64_t> list) {
      return list.empty() || list.size() == cells;
    };
    if (batch.ids.size() != cells || !fits(batch.mask) || !fits(batch.types)) {
      throw Error({DJINN_SHAPE_MISMATCH, "ids, mask and types must be [rows, tokens]."});
    }
  }

  std::unique_ptr<djinn_encoder, detail::Closer<djinn_encoder_close>> handle_;
};

class Generator {
 public:
  // False gives up the rest. May throw; the exception leaves generate().
  using OnToken = std::function<bool(uint32_t row, uint32_t index, int32_t token)>;

  Generator(Client& client, const std::string& directory, const djinn_model_options& options = {}) {
    djinn_generator* made = nullptr;
    detail::call(djinn_generator_open_with, client.handle(), directory.c_str(), &options, &made);
    handle_.reset(made);
  }

  [[nodiscard]] djinn_generator_info info() const {
    return djinn_generator_get_info(handle_.get());
  }
  [[nodiscard]] static djinn_generate_options defaults() {
    djinn_generate_options options;
    djinn_generate_options_init(&options);
    return options;
  }
  // Gives the first random offset that is unused. Throws RowsError where rows failed behind tokens
  // of others; on_token was told what there is of each.
  uint64_t generate(const std::vector<std::vector<int32_t>>& prompts, const OnToken& on_token,
                    const djinn_generate_options& options = defaults()) {
    std::vector<djinn_prompt> raw;
    for (const auto& prompt : prompts) raw.push_back({prompt.data(), prompt.size()});
    Listener listener{on_token, nullptr};
    uint64_t next = 0;
    djinn_error error;
    std::vector<djinn_error> rows(raw.size());
    djinn_generate_options told = options;
    if (raw.size() > 1) told.row_errors = rows.data();
    const djinn_code code =
        djinn_generator_generate(handle_.get(), raw.data(), raw.size(), &told, &Listener::tell,
                                 static_cast<void*>(&listener), &next, &error);
    if (listener.thrown) std::rethrow_exception(listener.thrown);
    if (code == DJINN_OK) return next;
    for (const djinn_error& row : rows) {
      if (row.code != DJINN_OK) throw RowsError(error, std::move(rows));
    }
    throw Error(error);
  }

 private:
  // An exception waits here while C frames are between it and its catcher.
  struct Listener {
    const OnToken& on_token;
    std::exception_ptr thrown;

    static int tell(void* context, uint32_t row, uint32_t index, int32_t token) noexcept {
      auto& self = *static_cast<Listener*>(context);
      try {
        return self.on_token(row, index, token) ? 0 : 1;
      } catch (...) {
        self.thrown = std::current_exception();
        return 1;
      }
    }
  };

  std::unique_ptr<djinn_generator, detail::Closer<djinn_generator_close>> handle_;
};

// Text to token ids and back, by the directory's tokenizer.json.
class Tokenizer {
 public:
  explicit Tokenizer(const std::string& directory) {
    djinn_tokenizer* made = nullptr;
    detail::call(djinn_tokenizer_open, directory.c_str(), &made);
    handle_.reset(made);
  }

  [[nodiscard]] const djinn_tokenizer* handle() const noexcept { return handle_.get(); }
  // special: with the tokens that the file puts before and behind a text.
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, bool special = true) const {
    std::vector<int32_t> tokens(text.size() + 16);
    const auto fill = [&] {
      size_t count = 0;
      detail::call(djinn_tokenizer_encode, handle(), text.data(), text.size(), special ? 1 : 0,
                   tokens.data(), tokens.size(), &count);
      return count;
    };
    return whole(tokens, fill);
  }
  // special: special tokens are written, too.
  [[nodiscard]] std::string decode(std::span<const int32_t> tokens, bool special = false) const {
    std::string text(tokens.size() * 8 + 16, '\0');
    const auto fill = [&] {
      size_t bytes = 0;
      detail::call(djinn_tokenizer_decode, handle(), tokens.data(), tokens.size(), special ? 1 : 0,
                   text.data(), text.size(), &bytes);
      return bytes;
    };
    return whole(text, fill);
  }

 private:
  // Fills list, once more where its room was not enough.
  template <typename List, typename Fill>
  static List whole(List& list, const Fill& fill) {
    const size_t room = list.size();
    const size_t count = fill();
    list.resize(count);
    if (count > room) fill();
    return std::move(list);
  }

  std::unique_ptr<djinn_tokenizer, detail::Closer<djinn_tokenizer_close>> handle_;
};

// The text of tokens that come one by one: next() gives whole characters, finish() the rest.
class Text {
 public:
  explicit Text(const Tokenizer& tokenizer) {
    djinn_text* made = nullptr;
    detail::call(djinn_text_open, tokenizer.handle(), &made);
    handle_.reset(made);
  }

  std::string next(int32_t token) {
    const char* part = nullptr;
    size_t bytes = 0;
    detail::call(djinn_text_next, handle_.get(), token, &part, &bytes);
    return {part, bytes};
  }
  std::string finish() {
    const char* part = nullptr;
    size_t bytes = 0;
    detail::call(djinn_text_finish, handle_.get(), &part, &bytes);
    return {part, bytes};
  }

 private:
  std::unique_ptr<djinn_text, detail::Closer<djinn_text_close>> handle_;
};

class Program {
 public:
  Program(Client& client, const std::string& srg_text, uint64_t model = 0) {
    djinn_program* made = nullptr;
    detail::call(djinn_program_define, client.handle(), srg_text.c_str(), model, &made);
    handle_.reset(made);
  }

  void run(std::span<const djinn_symbol> symbols, std::span<const djinn_input> inputs,
           std::span<djinn_output> outputs) {
    detail::call(djinn_program_run, handle_.get(), symbols.data(), symbols.size(), inputs.data(),
                 inputs.size(), outputs.data(), outputs.size());
  }

 private:
  std::unique_ptr<djinn_program, detail::Closer<djinn_program_close>> handle_;
};

// Bytes that stay in djinnd for as long as this lives.
class Ref {
 public:
  Ref(Client& client, std::span<const std::byte> data) : client_(client.handle()) {
    detail::call(djinn_ref_put, client_, static_cast<const void*>(data.data()), data.size(), &ref_);
  }
  ~Ref() { djinn_ref_release(client_, ref_, nullptr); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;

  [[nodiscard]] djinn_ref handle() const noexcept { return ref_; }
  void read(uint64_t offset_bytes, std::span<std::byte> out) const {
    detail::call(djinn_ref_read, client_, ref_, offset_bytes, static_cast<void*>(out.data()),
                 out.size());
  }

 private:
  djinn_client* client_;
  djinn_ref ref_{};
};

}  // namespace v1
}  // namespace djinn

#endif  // C++20

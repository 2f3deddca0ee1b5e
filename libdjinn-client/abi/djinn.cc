// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/abi/djinn.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ipc/binding.h"
#include "kernel/base/error.h"
#include "kernel/base/text.h"
#include "kernel/srg/text.h"
#include "kernel/srg/verify.h"
#include "libdjinn-client/abi/widen.h"
#include "libdjinn-client/connection.h"
#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/models/encoder.h"
#include "libdjinn-client/models/generator.h"
#include "libdjinn-client/models/vocabulary.h"
#include "libdjinn-client/operations.h"
#include "libdjinn-client/run_builder.h"
#include "libdjinn-client/transfer.h"

// All that is opened on a client remembers its session, because the client may have a new one by
// now.
struct djinn_opened;

struct djinn_client {
  djinn_client(djinn::client::ConnectOptions options, std::optional<uint64_t> reconnect_wait_ms)
      : connection(interruptible(std::move(options)), reconnect_wait_ms) {}
  ~djinn_client();
  djinn_client(const djinn_client&) = delete;
  djinn_client& operator=(const djinn_client&) = delete;

  djinn::client::Interrupt interrupt;
  const djinn::client::CancelPredicate given_up = [this] { return interrupt.is_raised(); };
  djinn::client::Connection connection;
  std::map<uint64_t, uint64_t> models;  // that were loaded, to the session that last did
  std::set<djinn_opened*> opened;       // on it, and not closed

 private:
  djinn::client::ConnectOptions interruptible(djinn::client::ConnectOptions options) {
    options.interrupt = &interrupt;
    return options;
  }
};
// This is the base of all that is opened on a client. If the client is closed first, it belongs to
// no session.
struct djinn_opened {
  explicit djinn_opened(djinn_client& on) : client(&on), session(on.connection.session()) {
    on.opened.insert(this);
  }
  ~djinn_opened() {
    if (client != nullptr) client->opened.erase(this);
  }
  djinn_opened(const djinn_opened&) = delete;
  djinn_opened& operator=(const djinn_opened&) = delete;

  djinn_client* client;  // null: it is closed
  const uint64_t session;
};
struct djinn_encoder : djinn_opened {
  djinn_encoder(djinn_client& on, std::unique_ptr<djinn::client::Encoder> made)
      : djinn_opened(on), encoder(std::move(made)) {}
  std::unique_ptr<djinn::client::Encoder> encoder;
};
struct djinn_generator : djinn_opened {
  djinn_generator(djinn_client& on, std::unique_ptr<djinn::client::Generator> made)
      : djinn_opened(on), generator(std::move(made)) {}
  std::unique_ptr<djinn::client::Generator> generator;
};
struct djinn_program : djinn_opened {
  djinn_program(djinn_client& on, djinn::client::LeasedProgram lease, djinn::srg::Graph of)
      : djinn_opened(on), leased(std::move(lease)), graph(std::move(of)) {}
  djinn::client::LeasedProgram leased;
  djinn::srg::Graph graph;
};
struct djinn_tokenizer {
  djinn::text::Tokenizer tokenizer;
};
struct djinn_text {
  djinn::text::Tokenizer::Stream stream;
  std::string part;  // that was given last
};

djinn_client::~djinn_client() {
  for (djinn_opened* const one : opened) one->client = nullptr;
}

namespace djinn {
namespace {

// The two enumerations have the same codes: a code that is added to one must be added to the other.
static_assert(DJINN_PROTOCOL_VIOLATION == static_cast<int>(ErrorCode::kProtocolViolation));
static_assert(DJINN_POISONED == static_cast<int>(ErrorCode::kPoisoned));
static_assert(DJINN_NOT_CONFINED == static_cast<int>(ErrorCode::kNotConfined));
static_assert(DJINN_SYSTEM == static_cast<int>(ErrorCode::kSystem));
static_assert(DJINN_TIMEOUT == static_cast<int>(ErrorCode::kTimeout));
static_assert(DJINN_HASH_MISMATCH == static_cast<int>(ErrorCode::kHashMismatch));
static_assert(DJINN_INTERNAL == static_cast<int>(ErrorCode::kInternal));
static_assert(DJINN_BOOL == static_cast<int>(DType::kBool));
static_assert(DJINN_FLOAT64 == static_cast<int>(DType::kFloat64));
static_assert(DJINN_COMPLEX128 == static_cast<int>(DType::kComplex128));
static_assert(DJINN_RANK_MAX == limits::kRank);
static_assert(DJINN_FOREVER == ipc::kKeepForever);
// Programs of users were compiled with these sizes.
static_assert(sizeof(djinn_error) == 512);
static_assert(sizeof(djinn_connect_options) == 56);
static_assert(sizeof(djinn_generate_options) == 104);

// --- errors

// The text is cut between two characters of UTF-8.
void copy_text(std::string_view text, std::span<char> out) {
  const std::string_view whole = whole_characters(text, out.size() - 1);
  std::ranges::copy(whole, out.begin());
  std::ranges::fill(out.subspan(whole.size()), '\0');
}

djinn_code tell(const Status& status, djinn_error* out) {
  const auto code = static_cast<djinn_code>(status ? ErrorCode::kOk : status.error().code);
  if (out != nullptr) {
    out->code = code;
    copy_text(status ? "" : status.error().message, out->message);
  }
  return code;
}

// Runs action, a function that returns Status, and tells how it ended. No exception leaves the
// library: what may still throw is memory that has run out.
template <typename Action>
djinn_code guarded(djinn_error* error, const Action& action) noexcept {
  try {
    return tell(action(), error);
  } catch (const std::bad_alloc&) {
    return tell(Error{ErrorCode::kOutOfMemory, "This process has no memory left."}, error);
  } catch (const std::exception& thrown) {
    return tell(Error{ErrorCode::kInternal, thrown.what()}, error);
  }
}

Status require(bool condition, const char* message) {
  if (condition) return {};
  return Error{ErrorCode::kInvalidArgument, message};
}

template <typename Pointer>
Status given(Pointer pointer, const char* name) {
  if (pointer != nullptr) return {};
  return Error{ErrorCode::kInvalidArgument, std::string(name) + " is NULL, and must not be."};
}

// Fields may be added in place of `reserved`. What they mean in another version is not known here.
template <typename Struct>
Status check_reserved(const Struct& given) {
  const bool zero = std::ranges::all_of(given.reserved, [](const auto one) { return one == 0; });
  return require(zero, "reserved must be zero. Begin the struct from zero.");
}

// Runs a call on a client, which djinn_cancel() may end.
template <typename Action>
djinn_code guarded(djinn_client* client, djinn_error* error, const Action& action) noexcept {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    const client::Interrupt::Call call(client->interrupt);
    return action();
  });
}

// Runs a call on something that was opened on a client.
template <typename Action>
djinn_code guarded(djinn_opened* opened, const char* name, djinn_error* error,
                   const Action& action) noexcept {
  if (opened != nullptr && opened->client != nullptr) return guarded(opened->client, error, action);
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(opened, name));
    return Error{ErrorCode::kDisconnected,
                 "The client that this was opened on is closed. Close this, too, and open it anew "
                 "on another client."};
  });
}

// --- sessions

client::ConnectOptions options_of(const djinn_connect_options* given) {
  client::ConnectOptions options;
  if (given == nullptr) return options;
  if (given->host != nullptr) options.host = given->host;
  if (given->name != nullptr) options.name = given->name;
  if (given->device != nullptr) options.device = given->device;
  if (given->service_class != nullptr) options.service_class = given->service_class;
  if (given->staging_bytes != 0) options.staging_bytes = given->staging_bytes;
  return options;
}

Result<client::ModelOptions> options_of(const djinn_model_options* given) {
  client::ModelOptions options;
  if (given == nullptr) return options;
  DJINN_CHECK(check_reserved(*given));
  if (given->numerics != nullptr) {
    DJINN_TRY(options.numerics, client::numerics_named(given->numerics));
  }
  if (given->weights != nullptr) {
    DJINN_TRY(options.matrices, client::weights_named(given->weights));
  }
  return options;
}

std::optional<uint64_t> reconnect_wait_of(const djinn_connect_options* given) {
  if (given == nullptr || given->reconnect_wait_ms == 0) return client::kReconnectWaitMs;
  if (given->reconnect_wait_ms == DJINN_NEVER) return std::nullopt;
  return given->reconnect_wait_ms;
}

void fill_in(const ipc::StatusReport& report, djinn_status& out) {
  out = {};
  copy_text(report.version, out.version);
  out.started_ns = report.started_wall_ns;
  out.memory_total_bytes = report.memory_total_bytes;
  out.memory_granted_bytes = report.memory_granted_bytes;
  out.memory_models_bytes = report.memory_models_bytes;
  out.memory_sessions_bytes = report.memory_sessions_bytes;
  out.models = report.models;
  out.sessions = report.sessions;
  out.programs = report.programs;
  out.workers = report.workers_total;
}

Status load_model(djinn_client* client, const char* directory, const client::Retention& retention,
                  uint64_t* out) {
  DJINN_CHECK(given(client, "client"));
  DJINN_CHECK(given(directory, "directory"));
  DJINN_CHECK(given(out, "out"));
  DJINN_TRY(const auto model, client::open_weight_files(directory));
  DJINN_TRY(client::Client* const session, client->connection.open(client->given_up));
  DJINN_TRY(const auto opened, session->open_model({model.label, model.numbers(), model.paths},
                                                   model.plan_or_null(), retention));
  client->models[opened.id.value] = client->connection.session();
  *out = opened.id.value;
  return {};
}

// Gives the client that has the model open. If this client has not loaded the model, djinnd knows
// whether it was opened.
Result<client::Client*> client_of_model(djinn_client& client, uint64_t model) {
  const auto loaded = client.models.find(model);
  if (loaded != client.models.end()) return client.connection.of(loaded->second);
  return client.connection.open(client.given_up);
}

// The model of an encoder or generator is closed with its session.
Status close_model_of(const djinn_opened& opened, ModelId model) {
  DJINN_TRY(client::Client* const found, opened.client->connection.of(opened.session));
  return found->close_model(model);
}

// --- encoder

std::span<const int64_t> cells(const int64_t* data, const djinn_batch& batch) {
  return {data, data == nullptr ? 0 : size_t{batch.rows} * batch.tokens};
}

Status encode(djinn_encoder& encoder, const djinn_batch& batch, float* embeddings, float* hidden) {
  const bool is_empty = batch.rows == 0 || batch.tokens == 0;
  DJINN_CHECK(check_reserved(batch));
  if (!is_empty) DJINN_CHECK(given(batch.ids, "batch.ids"));
  if (!is_empty) DJINN_CHECK(given(embeddings, "embeddings"));
  client::EncoderBatch rows;
  rows.rows = batch.rows;
  rows.tokens = batch.tokens;
  rows.ids = cells(batch.ids, batch);
  rows.mask = cells(batch.mask, batch);
  rows.types = cells(batch.types, batch);
  DJINN_CHECK(encoder.client->connection.of(encoder.session));
  DJINN_TRY(const auto encoded, encoder.encoder->encode(rows, hidden != nullptr));
  widen(encoded.dtype, encoded.embedding, embeddings);
  if (hidden != nullptr) widen(encoded.dtype, encoded.hidden, hidden);
  return {};
}

// --- generator

// A struct that is all zero means what _init gives.
Result<client::GenerateOptions> options_of(const djinn_generate_options& given,
                                           const client::Generator& generator) {
  client::GenerateOptions options;
  DJINN_CHECK(client::check_stop_tokens(given.stop_token_count));
  if (given.stop_token_count != 0) DJINN_CHECK(djinn::given(given.stop_tokens, "stop_tokens"));
  if (given.max_new_tokens != 0) options.max_new_tokens = given.max_new_tokens;
  options.min_new_tokens = given.min_new_tokens;
  if (given.stop_tokens != nullptr) {
    options.stop_tokens.assign(given.stop_tokens, given.stop_tokens + given.stop_token_count);
  } else {
    const auto& own = generator.end_tokens();
    options.stop_tokens.assign(own.begin(), own.end());
  }
  options.pad_token = given.pad_token;
  options.greedy = given.greedy != 0 || given.temperature == 0;
  if (!options.greedy) {
    options.temperature = given.temperature;
    options.top_k = given.top_k;
    if (given.top_p != 0) options.top_p = given.top_p;
    options.min_p = given.min_p;
  }
  if (given.repetition_penalty != 0) options.repetition_penalty = given.repetition_penalty;
  options.seed = given.seed;
  options.random_offset = given.random_offset;
  return options;
}

// out: null, or one for each row.
void tell_rows(const client::Generated& generated, djinn_error* out) {
  for (size_t row = 0; out != nullptr && row < generated.tokens.size(); ++row) {
    const bool is_whole = generated.errors.empty() || !generated.errors[row];
    tell(is_whole ? Status() : Status(*generated.errors[row]), out + row);
  }
}

Result<std::vector<std::vector<int32_t>>> rows_of(std::span<const djinn_prompt> prompts) {
  std::vector<std::vector<int32_t>> rows;
  DJINN_CHECK(client::check_prompts(prompts.size(), true));
  for (const djinn_prompt& prompt : prompts) {
    if (prompt.count != 0) DJINN_CHECK(given(prompt.tokens, "prompt.tokens"));
    if (prompt.count > limits::kSequenceTokens) {
      return Error{ErrorCode::kOutOfRange, "A prompt of " + std::to_string(prompt.count) +
                                               " tokens is longer than the " +
                                               std::to_string(limits::kSequenceTokens) +
                                               " that any model takes. Is prompt.count right?"};
    }
    rows.emplace_back(prompt.tokens, prompt.tokens + prompt.count);
  }
  return rows;
}

// --- text

text::SpecialTokens special_of(int given) {
  return given != 0 ? text::SpecialTokens::kWith : text::SpecialTokens::kWithout;
}

// Writes as much as there is room for, and how much there is.
template <typename List, typename Element>
Status give(const List& list, Element* out, size_t room, size_t* count) {
  DJINN_CHECK(given(count, "the count"));
  if (room != 0) DJINN_CHECK(given(out, "where the result goes"));
  std::copy_n(list.begin(), std::min(room, list.size()), out);
  *count = list.size();
  return {};
}

Status give_part(djinn_text& text, std::string part, const char** out, size_t* out_bytes) {
  DJINN_CHECK(given(out, "out"));
  text.part = std::move(part);
  *out = text.part.c_str();
  if (out_bytes != nullptr) *out_bytes = text.part.size();
  return {};
}

// --- programs

Status bind_symbols(client::RunBuilder& run, const srg::Graph& graph,
                    std::span<const djinn_symbol> symbols) {
  for (const djinn_symbol& symbol : symbols) {
    DJINN_CHECK(given(symbol.name, "symbol.name"));
    const std::string name = symbol.name;
    if (std::ranges::find(graph.symbols, name, &srg::Symbol::name) == graph.symbols.end()) {
      return Error{ErrorCode::kNotFound, "The program has no symbol '" + name + "'."};
    }
    run.symbol(name, symbol.value);
  }
  for (const srg::Symbol& wanted : graph.symbols) {
    const auto names_it = [&](const djinn_symbol& symbol) { return wanted.name == symbol.name; };
    if (std::ranges::none_of(symbols, names_it)) {
      return Error{ErrorCode::kInvalidArgument, "Symbol '" + wanted.name + "' was not given."};
    }
  }
  return {};
}

Status bind_inputs(client::Connection& connection, client::RunBuilder& run,
                   std::span<const djinn_input> inputs) {
  for (const djinn_input& input : inputs) {
    DJINN_CHECK(given(input.name, "input.name"));
    if (input.ref.generation != 0) {
      const RefHandle ref{input.ref.index, input.ref.generation};
      DJINN_CHECK(connection.of(ref));
      DJINN_CHECK(run.input_ref(input.name, ref));
      continue;
    }
    if (input.data_bytes != 0) DJINN_CHECK(given(input.data, "input.data"));
    const auto* const data = static_cast<const std::byte*>(input.data);
    DJINN_CHECK(run.input(input.name, {data, input.data_bytes}));
  }
  return {};
}

Result<size_t> output_index(const srg::Graph& graph, const char* name) {
  DJINN_CHECK(given(name, "name"));
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (graph.values[graph.outputs[i]].name == name) return i;
  }
  return Error{ErrorCode::kNotFound, "The program has no output '" + std::string(name) + "'."};
}

// Holds the outputs of one run: where they go, and what became of them.
class Outputs {
 public:
  Outputs(client::Client& client, const srg::Graph& graph, std::span<djinn_output> outputs)
      : client_(client), graph_(graph), outputs_(outputs) {}

  Status bind(client::RunBuilder& run) {
    for (djinn_output& output : outputs_) {
      DJINN_TRY(const size_t index, output_index(graph_, output.name));
      if (std::ranges::find(indices_, index) != indices_.end()) {
        return Error{ErrorCode::kInvalidArgument,
                     "The output '" + std::string(output.name) + "' is named twice."};
      }
      indices_.push_back(index);
      refs_.emplace_back();
      if (output.data != nullptr) {
        DJINN_CHECK(run.output(index, output.data_bytes));
        continue;
      }
      DJINN_TRY(refs_.back(), client_.new_ref());
      run.output_ref(index, refs_.back().ref());
    }
    return {};
  }

  void take(const client::RunBuilder& run) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      djinn_output& output = outputs_[i];
      describe(run.description(indices_[i]), output);
      const RefHandle ref = std::move(refs_[i]).detach();
      output.ref = {ref.index, ref.generation};
      const std::vector<std::byte> bytes = run.take_output(indices_[i]);
      if (!bytes.empty()) std::memcpy(output.data, bytes.data(), bytes.size());
    }
  }

 private:
  static void describe(const ipc::OutputDescription& from, djinn_output& to) {
    to.dtype = static_cast<djinn_dtype>(from.dtype);
    to.rank = from.rank;
    std::ranges::copy(from.sizes, to.sizes);
    std::ranges::copy(from.strides, to.strides);
    to.offset = from.offset;
  }

  client::Client& client_;
  const srg::Graph& graph_;
  std::span<djinn_output> outputs_;
  std::vector<size_t> indices_;
  std::vector<client::RefLease> refs_;  // of each output; of none for one that goes to data
};

}  // namespace
}  // namespace djinn

using djinn::given;
using djinn::guarded;
using djinn::require;
using djinn::Status;

// --- errors

const char* djinn_code_name(djinn_code code) {
  return djinn::name_of(static_cast<djinn::ErrorCode>(code)).data();
}

const char* djinn_version(void) {
  return DJINN_VERSION;
}

// --- sessions

djinn_code djinn_connect(const djinn_connect_options* options, djinn_client** out,
                         djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(out, "out"));
    if (options != nullptr) DJINN_CHECK(djinn::check_reserved(*options));
    auto client = std::make_unique<djinn_client>(djinn::options_of(options),
                                                 djinn::reconnect_wait_of(options));
    DJINN_CHECK(client->connection.open());
    *out = client.release();
    return {};
  });
}

djinn_code djinn_reconnect(djinn_client* client, uint64_t wait_ms, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    return client->connection.reconnect(wait_ms, client->given_up);
  });
}

void djinn_close(djinn_client* client) {
  delete client;
}

void djinn_cancel(djinn_client* client) {
  if (client != nullptr) client->interrupt.raise();
}

djinn_code djinn_set_begin_within(djinn_client* client, uint64_t within_ms, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    client->connection.set_begin_within_ms(within_ms == DJINN_FOREVER ? 0 : within_ms);
    return {};
  });
}

djinn_code djinn_get_status(djinn_client* client, djinn_status* out, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_CHECK(given(out, "out"));
    DJINN_TRY(djinn::client::Client* const session, client->connection.open(client->given_up));
    DJINN_TRY(const auto report, session->status());
    djinn::fill_in(report, *out);
    return {};
  });
}

// --- models

djinn_code djinn_model_load(djinn_client* client, const char* directory, uint64_t* out,
                            djinn_error* error) {
  return guarded(client, error, [&] { return djinn::load_model(client, directory, {}, out); });
}

djinn_code djinn_model_load_pinned(djinn_client* client, const char* directory, uint64_t* out,
                                   djinn_error* error) {
  return guarded(client, error,
                 [&] { return djinn::load_model(client, directory, {.pinned = true}, out); });
}

djinn_code djinn_model_load_keep_alive(djinn_client* client, const char* directory,
                                       uint64_t keep_alive_ms, uint64_t* out, djinn_error* error) {
  return guarded(client, error, [&] {
    return djinn::load_model(client, directory, {.keep_alive_ms = keep_alive_ms}, out);
  });
}

djinn_code djinn_model_close(djinn_client* client, uint64_t model, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_TRY(djinn::client::Client* const session, djinn::client_of_model(*client, model));
    return session->close_model(djinn::ModelId{model});
  });
}

djinn_code djinn_model_unload(djinn_client* client, uint64_t model, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_TRY(djinn::client::Client* const session, client->connection.open(client->given_up));
    return session->unload_model(djinn::ModelId{model});
  });
}

// --- encoder

djinn_code djinn_encoder_open(djinn_client* client, const char* directory, djinn_encoder** out,
                              djinn_error* error) {
  return djinn_encoder_open_with(client, directory, nullptr, out, error);
}

djinn_code djinn_encoder_open_with(djinn_client* client, const char* directory,
                                   const djinn_model_options* options, djinn_encoder** out,
                                   djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_CHECK(given(directory, "directory"));
    DJINN_CHECK(given(out, "out"));
    DJINN_TRY(const auto chosen, djinn::options_of(options));
    DJINN_TRY(djinn::client::Client* const session, client->connection.open(client->given_up));
    DJINN_TRY(auto encoder, djinn::client::Encoder::open(*session, directory, chosen));
    *out = new djinn_encoder(*client, std::move(encoder));
    return {};
  });
}

void djinn_encoder_close(djinn_encoder* encoder) {
  if (encoder == nullptr) return;
  guarded(encoder, "encoder", nullptr,
          [&] { return djinn::close_model_of(*encoder, encoder->encoder->model().id); });
  delete encoder;
}

djinn_encoder_info djinn_encoder_get_info(const djinn_encoder* encoder) {
  djinn_encoder_info info = {};
  if (encoder == nullptr) return info;
  const djinn::client::BertConfig& config = encoder->encoder->config();
  info.hidden = static_cast<uint32_t>(config.hidden);
  info.tokens_max = static_cast<uint32_t>(config.positions);
  info.rows_max = djinn::client::kEncoderRowsMax;
  info.vocabulary = static_cast<uint32_t>(config.vocabulary);
  info.dtype = static_cast<djinn_dtype>(config.dtype);
  return info;
}

djinn_code djinn_encoder_encode(djinn_encoder* encoder, const djinn_batch* batch, float* embeddings,
                                float* hidden, djinn_error* error) {
  return guarded(encoder, "encoder", error, [&]() -> Status {
    DJINN_CHECK(given(batch, "batch"));
    return djinn::encode(*encoder, *batch, embeddings, hidden);
  });
}

// --- generator

void djinn_generate_options_init(djinn_generate_options* options) {
  if (options == nullptr) return;
  const djinn::client::GenerateOptions defaults;
  *options = {};
  options->max_new_tokens = defaults.max_new_tokens;
  options->greedy = 1;
  options->temperature = defaults.temperature;
  options->top_p = defaults.top_p;
  options->repetition_penalty = defaults.repetition_penalty;
}

djinn_code djinn_generator_open(djinn_client* client, const char* directory, djinn_generator** out,
                                djinn_error* error) {
  return djinn_generator_open_with(client, directory, nullptr, out, error);
}

djinn_code djinn_generator_open_with(djinn_client* client, const char* directory,
                                     const djinn_model_options* options, djinn_generator** out,
                                     djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_CHECK(given(directory, "directory"));
    DJINN_CHECK(given(out, "out"));
    DJINN_TRY(const auto chosen, djinn::options_of(options));
    DJINN_TRY(djinn::client::Client* const session, client->connection.open(client->given_up));
    DJINN_TRY(auto generator, djinn::client::Generator::open(*session, directory, chosen));
    *out = new djinn_generator(*client, std::move(generator));
    return {};
  });
}

void djinn_generator_close(djinn_generator* generator) {
  if (generator == nullptr) return;
  guarded(generator, "generator", nullptr,
          [&] { return djinn::close_model_of(*generator, generator->generator->model().id); });
  delete generator;
}

djinn_generator_info djinn_generator_get_info(const djinn_generator* generator) {
  djinn_generator_info info = {};
  if (generator == nullptr) return info;
  const djinn::client::GeneratorSizes& sizes = generator->generator->sizes();
  info.vocabulary = sizes.vocabulary;
  info.tokens_max = sizes.positions;
  info.begin_token = static_cast<int32_t>(generator->generator->begin_token());
  return info;
}

djinn_code djinn_generator_generate(djinn_generator* generator, const djinn_prompt* prompts,
                                    size_t prompt_count, const djinn_generate_options* options,
                                    djinn_on_token on_token, void* context,
                                    uint64_t* next_random_offset, djinn_error* error) {
  return guarded(generator, "generator", error, [&]() -> Status {
    DJINN_CHECK(given(on_token, "on_token"));
    if (prompt_count != 0) DJINN_CHECK(given(prompts, "prompts"));
    if (options != nullptr) DJINN_CHECK(djinn::check_reserved(*options));
    djinn_generate_options defaults;
    djinn_generate_options_init(&defaults);
    DJINN_TRY(const auto rows, djinn::rows_of({prompts, prompt_count}));
    DJINN_CHECK(generator->client->connection.of(generator->session));
    const auto tell_token = [&](const djinn::client::TokenEvent& event) {
      return on_token(context, event.row, event.index, event.token) == 0;
    };
    DJINN_TRY(const auto chosen,
              djinn::options_of(options != nullptr ? *options : defaults, *generator->generator));
    const djinn::client::Connection::Hold hold(generator->client->connection);
    DJINN_TRY(const auto done, generator->generator->generate(rows, chosen, tell_token));
    if (options != nullptr) djinn::tell_rows(done, options->row_errors);
    if (done.failed_row()) return done.failure();
    if (next_random_offset != nullptr) *next_random_offset = done.random_offset;
    return {};
  });
}

// --- text

djinn_code djinn_tokenizer_open(const char* directory, djinn_tokenizer** out, djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(directory, "directory"));
    DJINN_CHECK(given(out, "out"));
    DJINN_TRY(auto tokenizer, djinn::client::open_tokenizer(directory));
    *out = new djinn_tokenizer{std::move(tokenizer)};
    return {};
  });
}

void djinn_tokenizer_close(djinn_tokenizer* tokenizer) {
  delete tokenizer;
}

djinn_code djinn_tokenizer_encode(const djinn_tokenizer* tokenizer, const char* text,
                                  size_t text_bytes, int special, int32_t* tokens, size_t room,
                                  size_t* count, djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(tokenizer, "tokenizer"));
    if (text_bytes != 0) DJINN_CHECK(given(text, "text"));
    DJINN_TRY(const auto encoded,
              tokenizer->tokenizer.encode({text, text_bytes}, djinn::special_of(special)));
    return djinn::give(encoded, tokens, room, count);
  });
}

djinn_code djinn_tokenizer_decode(const djinn_tokenizer* tokenizer, const int32_t* tokens,
                                  size_t count, int special, char* text, size_t room,
                                  size_t* text_bytes, djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(tokenizer, "tokenizer"));
    if (count != 0) DJINN_CHECK(given(tokens, "tokens"));
    const std::string decoded =
        tokenizer->tokenizer.decode({tokens, count}, djinn::special_of(special));
    return djinn::give(decoded, text, room, text_bytes);
  });
}

djinn_code djinn_text_open(const djinn_tokenizer* tokenizer, djinn_text** out, djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(tokenizer, "tokenizer"));
    DJINN_CHECK(given(out, "out"));
    *out = new djinn_text{tokenizer->tokenizer.stream(djinn::text::SpecialTokens::kWithout), {}};
    return {};
  });
}

void djinn_text_close(djinn_text* text) {
  delete text;
}

djinn_code djinn_text_next(djinn_text* text, int32_t token, const char** out, size_t* out_bytes,
                           djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(text, "text"));
    return djinn::give_part(*text, text->stream.next(token), out, out_bytes);
  });
}

djinn_code djinn_text_finish(djinn_text* text, const char** out, size_t* out_bytes,
                             djinn_error* error) {
  return guarded(error, [&]() -> Status {
    DJINN_CHECK(given(text, "text"));
    return djinn::give_part(*text, text->stream.finish(), out, out_bytes);
  });
}

// --- refs

djinn_code djinn_ref_put(djinn_client* client, const void* data, size_t data_bytes, djinn_ref* out,
                         djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_CHECK(given(out, "out"));
    if (data_bytes != 0) DJINN_CHECK(given(data, "data"));
    const auto* const bytes = static_cast<const std::byte*>(data);
    DJINN_TRY(djinn::client::Client* const session, client->connection.open(client->given_up));
    DJINN_TRY(auto lease, djinn::client::put(*session, {bytes, data_bytes}));
    const djinn::RefHandle ref = std::move(lease).detach();
    *out = {ref.index, ref.generation};
    return {};
  });
}

djinn_code djinn_ref_read(djinn_client* client, djinn_ref ref, uint64_t offset_bytes, void* data,
                          size_t data_bytes, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    if (data_bytes != 0) DJINN_CHECK(given(data, "data"));
    const djinn::RefHandle handle{ref.index, ref.generation};
    DJINN_TRY(djinn::client::Client* const session, client->connection.of(handle));
    const djinn::ipc::ReadBlock view{handle, djinn::DType::kUInt8, {data_bytes},
                                     {1},    offset_bytes,         {}};
    return djinn::client::read(*session, view, {static_cast<std::byte*>(data), data_bytes});
  });
}

djinn_code djinn_ref_release(djinn_client* client, djinn_ref ref, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    const djinn::RefHandle handle{ref.index, ref.generation};
    DJINN_TRY(djinn::client::Client* const session, client->connection.of(handle));
    return djinn::client::release(*session, std::span(&handle, 1));
  });
}

// --- programs

djinn_code djinn_program_define(djinn_client* client, const char* srg_text, uint64_t model,
                                djinn_program** out, djinn_error* error) {
  return guarded(client, error, [&]() -> Status {
    DJINN_CHECK(given(client, "client"));
    DJINN_CHECK(given(srg_text, "srg_text"));
    DJINN_CHECK(given(out, "out"));
    DJINN_TRY(auto graph, djinn::srg::parse_text(srg_text));
    DJINN_CHECK(djinn::srg::verify(graph));
    DJINN_TRY(djinn::client::Client* const session, djinn::client_of_model(*client, model));
    DJINN_TRY(auto leased, session->lease_program(graph, djinn::ModelId{model}));
    *out = new djinn_program(*client, std::move(leased), std::move(graph));
    return {};
  });
}

void djinn_program_close(djinn_program* program) {
  delete program;
}

djinn_code djinn_program_run(djinn_program* program, const djinn_symbol* symbols,
                             size_t symbol_count, const djinn_input* inputs, size_t input_count,
                             djinn_output* outputs, size_t output_count, djinn_error* error) {
  return guarded(program, "program", error, [&]() -> Status {
    if (symbol_count != 0) DJINN_CHECK(given(symbols, "symbols"));
    if (input_count != 0) DJINN_CHECK(given(inputs, "inputs"));
    if (output_count != 0) DJINN_CHECK(given(outputs, "outputs"));
    djinn::client::Connection& connection = program->client->connection;
    DJINN_TRY(djinn::client::Client* const session, connection.of(program->session));
    djinn::client::RunBuilder run(*session, program->graph);
    djinn::Outputs results(*session, program->graph, {outputs, output_count});
    DJINN_CHECK(djinn::bind_symbols(run, program->graph, {symbols, symbol_count}));
    DJINN_CHECK(djinn::bind_inputs(connection, run, {inputs, input_count}));
    DJINN_CHECK(results.bind(run));
    DJINN_CHECK(run.run(program->leased.defined.program));
    results.take(run);
    return {};
  });
}

// SPDX-License-Identifier: Apache-2.0

// Encoder and Generator for Python keep their session alive. Every call goes through a turn of the
// session with this number, which refuses a session that has ended, and so a client that is gone.

#include <array>
#include <exception>
#include <functional>
#include <map>
#include <utility>

#include "kernel/srg/text.h"
#include "libdjinn-client/models/encoder.h"
#include "libdjinn-client/models/generator.h"
#include "libdjinn-client/models/keys.h"
#include "python/binding/session.h"

namespace djinn::python {
namespace {

using Shared = std::shared_ptr<Session>;

std::span<const int64_t> int64s(const std::optional<Buffer>& buffer) {
  if (!buffer) return {};
  const auto bytes = buffer->bytes();
  return {reinterpret_cast<const int64_t*>(bytes.data()), bytes.size() / sizeof(int64_t)};
}

std::optional<Buffer> buffer_of(const py::object& array) {
  if (array.is_none()) return std::nullopt;
  return Buffer(array.cast<py::buffer>());
}

using Name = std::optional<std::string>;

// numerics: none: the model's, or djinnd's lane.numerics. weights: none: as the files have them.
client::ModelOptions options_of(const Name& numerics, const Name& weights) {
  client::ModelOptions options;
  if (numerics) options.numerics = take(client::numerics_named(*numerics));
  if (weights) options.matrices = take(client::weights_named(*weights));
  return options;
}

class Encoder {
 public:
  Encoder(Shared session, const std::string& directory, const Name& numerics, const Name& weights)
      : session_(std::move(session)) {
    const client::ModelOptions chosen = options_of(numerics, weights);
    encoder_ = take(session_->turn([&](client::Client& client) {
      number_ = session_->number();
      return client::Encoder::open(client, directory, chosen);
    }));
  }

  // ids, mask and types are int64 [rows, tokens]. Gives (dtype, hidden or empty, embedding).
  py::tuple encode(const py::object& ids, const py::object& mask, const py::object& types,
                   uint32_t rows, uint32_t tokens, bool want_hidden) {
    const auto buffers = std::array{buffer_of(ids), buffer_of(mask), buffer_of(types)};
    const client::EncoderBatch batch{rows, tokens, int64s(buffers[0]), int64s(buffers[1]),
                                     int64s(buffers[2])};
    const client::Encoded encoded = take(session_->turn_of(
        number_, [&](client::Client&) { return encoder_->encode(batch, want_hidden); }));
    return py::make_tuple(std::string(name_of(encoded.dtype)), to_bytearray(encoded.hidden),
                          to_bytearray(encoded.embedding));
  }

  [[nodiscard]] const client::BertConfig& config() const { return encoder_->config(); }
  // Gives what the user is told about config.json; empty if there is nothing.
  [[nodiscard]] std::string note() const { return client::tell_unknown(encoder_->unknown_keys()); }
  [[nodiscard]] py::dict model() const { return to_python(encoder_->model(), number_); }

 private:
  Shared session_;
  uint64_t number_ = 0;  // of the session that it is of
  std::unique_ptr<client::Encoder> encoder_;
};

// Calls a Python function for each token, from a turn that does not hold the GIL. If the function
// raises, the generation ends, and the exception is raised again at the end.
class TokenCallback {
 public:
  explicit TokenCallback(py::object function) : function_(std::move(function)) {}

  bool operator()(const client::TokenEvent& event) {
    const py::gil_scoped_acquire gil;
    try {
      const py::object more = function_(event.row, event.index, event.token);
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return more.is_none() || more.cast<bool>();
    } catch (...) {
      raised_ = std::current_exception();
      return false;
    }
  }

  void raise_again() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  py::object function_;
  std::exception_ptr raised_;
};

class Generator {
 public:
  Generator(Shared session, const std::string& directory, const Name& numerics, const Name& weights)
      : session_(std::move(session)) {
    const client::ModelOptions chosen = options_of(numerics, weights);
    generator_ = take(session_->turn([&](client::Client& client) {
      number_ = session_->number();
      return client::Generator::open(client, directory, chosen);
    }));
  }

  // on_token(row, index, token) gives None or True to go on. Gives (token lists, next random
  // offset, errors by row: none where all rows are whole).
  py::tuple generate(const std::vector<std::vector<int32_t>>& prompts,
                     const client::GenerateOptions& options, const py::object& on_token) {
    TokenCallback callback(on_token);
    std::function<bool(const client::TokenEvent&)> stream;
    if (!on_token.is_none()) stream = std::ref(callback);
    auto generated = session_->turn_of(
        number_, [&](client::Client&) { return generator_->generate(prompts, options, stream); });
    callback.raise_again();
    const client::Generated done = take(std::move(generated));
    py::list errors;
    for (const std::optional<Error>& error : done.errors) {
      errors.append(error ? to_python(*error) : py::none());
    }
    return py::make_tuple(done.tokens, done.random_offset, errors);
  }

  // Gives the text of one of the model's programs.
  [[nodiscard]] std::string source(const std::string& phase, bool all_logits) const {
    const std::map<std::string, client::LlamaPhase> phases{
        {"prefill", client::LlamaPhase::kPrefill},
        {"prefill_masked", client::LlamaPhase::kPrefillMasked},
        {"decode", client::LlamaPhase::kDecode},
        {"decode_masked", client::LlamaPhase::kDecodeMasked}};
    const auto found = phases.find(phase);
    if (found == phases.end()) throw py::value_error("there is no phase '" + phase + "'");
    const client::LlamaConfig* const config = generator_->llama();
    if (config == nullptr) throw py::value_error("its programs are in the bundle's djinn.json");
    return srg::print_text(take(client::build_llama(*config, {found->second, all_logits})));
  }

  [[nodiscard]] const client::GeneratorSizes& sizes() const { return generator_->sizes(); }
  [[nodiscard]] const client::Generator& inner() const { return *generator_; }
  [[nodiscard]] std::string note() const {
    return client::tell_unknown(generator_->unknown_keys());
  }
  [[nodiscard]] py::dict model() const { return to_python(generator_->model(), number_); }

 private:
  Shared session_;
  uint64_t number_ = 0;  // of the session that it is of
  std::unique_ptr<client::Generator> generator_;
};

void add_options(py::module_& module) {
  using Options = client::GenerateOptions;
  py::class_<Options>(module, "GenerateOptions")
      .def(py::init<>())
      .def_readwrite("max_new_tokens", &Options::max_new_tokens)
      .def_readwrite("min_new_tokens", &Options::min_new_tokens)
      .def_readwrite("stop_tokens", &Options::stop_tokens)
      .def_readwrite("pad_token", &Options::pad_token)
      .def_readwrite("greedy", &Options::greedy)
      .def_readwrite("temperature", &Options::temperature)
      .def_readwrite("top_k", &Options::top_k)
      .def_readwrite("top_p", &Options::top_p)
      .def_readwrite("min_p", &Options::min_p)
      .def_readwrite("repetition_penalty", &Options::repetition_penalty)
      .def_readwrite("seed", &Options::seed)
      .def_readwrite("random_offset", &Options::random_offset);
}

void add_encoder(py::module_& module) {
  py::class_<Encoder>(module, "Encoder")
      .def(py::init<Shared, const std::string&, const Name&, const Name&>())
      .def("encode", &Encoder::encode)
      .def_property_readonly("hidden", [](const Encoder& e) { return e.config().hidden; })
      .def_property_readonly("positions", [](const Encoder& e) { return e.config().positions; })
      .def_property_readonly("vocabulary", [](const Encoder& e) { return e.config().vocabulary; })
      .def_property_readonly("note", &Encoder::note)
      .def_property_readonly("model", &Encoder::model);
}

void add_generator(py::module_& module) {
  py::class_<Generator>(module, "Generator")
      .def(py::init<Shared, const std::string&, const Name&, const Name&>())
      .def("generate", &Generator::generate)
      .def("source", &Generator::source)
      .def_property_readonly("layers", [](const Generator& g) { return g.sizes().layers; })
      .def_property_readonly("kv_heads", [](const Generator& g) { return g.sizes().kv_heads; })
      .def_property_readonly("head_dim", [](const Generator& g) { return g.sizes().head_dim; })
      .def_property_readonly("positions", [](const Generator& g) { return g.sizes().positions; })
      .def_property_readonly("vocabulary", [](const Generator& g) { return g.sizes().vocabulary; })
      .def_property_readonly(
          "dtype", [](const Generator& g) { return std::string(name_of(g.sizes().dtype)); })
      .def_property_readonly("begin_token",
                             [](const Generator& g) { return g.inner().begin_token(); })
      .def_property_readonly("end_tokens",
                             [](const Generator& g) { return g.inner().end_tokens(); })
      .def_property_readonly("note", &Generator::note)
      .def_property_readonly("model", &Generator::model);
}

}  // namespace

void add_models(py::module_& module) {
  add_options(module);
  add_encoder(module);
  add_generator(module);
}

}  // namespace djinn::python

// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/models/bundle.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ipc/limits.h"
#include "kernel/base/file.h"
#include "kernel/base/text.h"
#include "kernel/srg/text.h"
#include "libdjinn-client/models/directory.h"
#include "libdjinn-client/models/json_text.h"
#include "libdjinn-client/models/weights.h"

namespace djinn::client {
namespace {

using Json = nlohmann::json;

constexpr const char* kName = "djinn.json";
constexpr uint64_t kVersion = 1;
constexpr uint64_t kBytesMax = 128u << 20;  // constants in hexadecimal, and five large programs
constexpr size_t kProgramsMax = 5;
constexpr size_t kConstantsMax = 65'536;
constexpr size_t kLinesMax = 1 << 20;
constexpr size_t kPiecesMax = 4096;  // as plans.py has it

std::string path_of(const std::string& directory) {
  return (std::filesystem::path(directory) / kName).string();
}

Error malformed(const std::string& path, const std::string& what) {
  return {ErrorCode::kMalformed,
          path + " is not a bundle as djinn writes them: " + what +
              ". Export the model again: python3 -m djinn export MODEL DIR."};
}

// Reads fields of JSON. What is missing or of another kind reads as empty, and is remembered: the
// first such field is the error of the whole.
class Reader {
 public:
  const Json& list(const Json& of, const char* key, size_t most) {
    static const Json empty = Json::array();
    const Json* const found = member(of, key);
    if (found != nullptr && found->is_array() && found->size() <= most) return *found;
    return fail(key, empty);
  }
  std::string text(const Json& of, const char* key) { return text_of(member(of, key), key); }
  std::string text_of(const Json* value, const char* key) {
    if (value == nullptr || !value->is_string()) return fail(key, std::string());
    return value->get<std::string>();
  }
  uint64_t number(const Json& of, const char* key, uint64_t most) {
    return number_of(member(of, key), key, most);
  }
  uint64_t number_of(const Json* value, const char* key, uint64_t most) {
    const bool is_number = value != nullptr && value->is_number_unsigned();
    if (!is_number || value->get<uint64_t>() > most) return fail(key, uint64_t{0});
    return value->get<uint64_t>();
  }
  bool flag(const Json& of, const char* key) { return flag_of(member(of, key), key); }
  bool flag_of(const Json* value, const char* key) {
    if (value == nullptr || !value->is_boolean()) return fail(key, false);
    return value->get<bool>();
  }
  // The item of a list of exactly so many; nullptr for another list.
  const Json* item(const Json& of, size_t index, size_t count, const char* key) {
    if (of.is_array() && of.size() == count) return &of[index];
    return fail(key, static_cast<const Json*>(nullptr));
  }
  const Json* member(const Json& of, const char* key) {
    if (of.is_object() && of.contains(key)) return &of[key];
    return fail(key, static_cast<const Json*>(nullptr));
  }
  template <typename T>
  T fail(const std::string& what, T otherwise) {
    if (bad_.empty()) bad_ = what;
    return otherwise;
  }
  const Json& fail(const std::string& what, const Json& otherwise) {
    if (bad_.empty()) bad_ = what;
    return otherwise;
  }
  [[nodiscard]] const std::string& bad() const { return bad_; }

 private:
  std::string bad_;
};

DType read_dtype(Reader& reader, const Json* value, const char* key) {
  const auto dtype = dtype_from_name(reader.text_of(value, key));
  return dtype ? *dtype : reader.fail(key, DType::kInvalid);
}

std::vector<uint64_t> read_numbers(Reader& reader, const Json* list, const char* key, size_t most) {
  std::vector<uint64_t> numbers;
  if (list == nullptr || !list->is_array() || list->size() > most) {
    return reader.fail(key, std::move(numbers));
  }
  for (const Json& one : *list) numbers.push_back(reader.number_of(&one, key, INT64_MAX));
  return numbers;
}

// [file, tensor, [[dimension, start, length], ...], transposed]
srg::Piece read_piece(Reader& reader, const Json& json, size_t files) {
  const char* const key = "weights";
  srg::Piece piece;
  piece.file =
      static_cast<uint32_t>(reader.number_of(reader.item(json, 0, 4, key), key, files - 1));
  piece.tensor = reader.text_of(reader.item(json, 1, 4, key), key);
  piece.transpose = reader.flag_of(reader.item(json, 3, 4, key), key);
  const Json* const slices = reader.item(json, 2, 4, key);
  if (slices == nullptr || !slices->is_array() || slices->size() > limits::kRank) {
    return reader.fail(key, std::move(piece));
  }
  for (const Json& one : *slices) {
    const std::vector<uint64_t> numbers = read_numbers(reader, &one, key, 3);
    if (numbers.size() != 3 || numbers[0] >= limits::kRank) {
      return reader.fail(key, std::move(piece));
    }
    piece.slices.push_back({static_cast<uint32_t>(numbers[0]), numbers[1], numbers[2]});
  }
  return piece;
}

// [name, dtype, sizes, dimension of concatenation, pieces]
srg::Destination read_weight(Reader& reader, const Json& json, size_t files) {
  const char* const key = "weights";
  srg::Destination made;
  made.name = reader.text_of(reader.item(json, 0, 5, key), key);
  made.dtype = read_dtype(reader, reader.item(json, 1, 5, key), key);
  made.sizes = read_numbers(reader, reader.item(json, 2, 5, key), key, limits::kRank);
  made.concat_dimension =
      static_cast<uint32_t>(reader.number_of(reader.item(json, 3, 5, key), key, limits::kRank));
  const Json* const pieces = reader.item(json, 4, 5, key);
  if (pieces == nullptr || !pieces->is_array() || pieces->size() > kPiecesMax) {
    return reader.fail(key, std::move(made));
  }
  for (const Json& one : *pieces) made.pieces.push_back(read_piece(reader, one, files));
  return made;
}

int nibble(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

std::vector<std::byte> read_bytes(Reader& reader, const Json& json) {
  const std::string text = reader.text_of(&json, "constants");
  std::vector<std::byte> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
    if (high < 0 || low < 0) return reader.fail("constants", std::move(bytes));
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  if (bytes.empty() || text.size() % 2 != 0) reader.fail("constants", 0);
  return bytes;
}

Result<srg::Graph> read_graph(Reader& reader, const Json& json) {
  std::string text;
  for (const Json& line : reader.list(json, "text", kLinesMax)) {
    text += reader.text_of(&line, "text") + '\n';
  }
  return srg::parse_text(text);
}

Result<BundleProgram> read_program(Reader& reader, const Json& json, const Bundle& bundle) {
  BundleProgram program;
  const std::string phase = reader.text(json, "phase");
  program.phase = phase == "prefill"  ? BundlePhase::kPrefill
                  : phase == "extend" ? BundlePhase::kExtend
                                      : BundlePhase::kDecode;
  if (program.phase == BundlePhase::kDecode && phase != "decode") reader.fail("phase", 0);
  program.from = reader.number(json, "from", bundle.positions);
  DJINN_TRY(program.graph, read_graph(reader, json));
  const Json* const inputs = reader.member(json, "inputs");
  if (inputs == nullptr || !inputs->is_object()) return reader.fail("inputs", std::move(program));
  for (const auto& [name, number] : inputs->items()) {
    const auto is_it = [&name](const srg::Storage& one) {
      return one.kind == srg::StorageKind::kInput && one.name == name;
    };
    const auto found = std::ranges::find_if(program.graph.storages, is_it);
    const uint64_t constant = reader.number_of(&number, "inputs", INT64_MAX);
    const bool is_there = found != program.graph.storages.end();
    if (!is_there || constant >= bundle.constants.size()) {
      return reader.fail("inputs", std::move(program));
    }
    program.inputs.emplace_back(found - program.graph.storages.begin(), constant);
  }
  return program;
}

void read_sizes(Reader& reader, const Json& root, Bundle& bundle) {
  const Json* const geometry = reader.member(root, "geometry");
  if (geometry == nullptr) return;
  const auto count = [&](const Json& of, const char* key) {
    const uint64_t value = reader.number(of, key, INT32_MAX);
    return static_cast<uint32_t>(value == 0 ? reader.fail(key, value) : value);
  };
  bundle.geometry.layers = count(*geometry, "layers");
  bundle.geometry.kv_heads = count(*geometry, "kv_heads");
  bundle.geometry.head_dim = count(*geometry, "head_dim");
  bundle.geometry.dtype = read_dtype(reader, reader.member(*geometry, "dtype"), "dtype");
  bundle.vocabulary = count(root, "vocabulary");
  bundle.positions = count(root, "positions");
  for (const Json& token : reader.list(root, "end_tokens", limits::kStopTokens)) {
    const uint64_t id = reader.number_of(&token, "end_tokens", INT32_MAX);
    bundle.end_tokens.push_back(static_cast<int64_t>(id));
  }
  const Json* const begin = reader.member(root, "begin_token");
  const bool is_none = begin != nullptr && begin->is_number_integer() && *begin == -1;
  if (is_none) return;
  bundle.begin_token = static_cast<int32_t>(reader.number_of(begin, "begin_token", INT32_MAX));
}

// The order and the number that BundleProgram's reader relies on.
bool are_complete(std::vector<BundleProgram>& programs) {
  std::ranges::stable_sort(programs, {}, &BundleProgram::from);
  const auto count = [&](BundlePhase phase) {
    return std::ranges::count(programs, phase, &BundleProgram::phase);
  };
  const auto decodes = count(BundlePhase::kDecode);
  return count(BundlePhase::kPrefill) >= 1 && count(BundlePhase::kExtend) <= 1 && decodes >= 1 &&
         decodes <= 2;
}

Status read_programs(Reader& reader, const Json& root, Bundle& bundle, const std::string& path) {
  for (const Json& one : reader.list(root, "constants", kConstantsMax)) {
    bundle.constants.push_back(read_bytes(reader, one));
  }
  for (const Json& one : reader.list(root, "programs", kProgramsMax)) {
    auto program = read_program(reader, one, bundle);
    if (!program) {
      std::string why = program.error().message;
      if (why.ends_with('.')) why.pop_back();
      return malformed(path, "a program has no text of one: " + why);
    }
    bundle.programs.push_back(*std::move(program));
  }
  if (reader.bad().empty() && !are_complete(bundle.programs)) reader.fail("programs", 0);
  return {};
}

Status check_version(Reader& reader, const Json& root, const std::string& path) {
  if (!root.is_object() || reader.text(root, "format") != "djinn-bundle") {
    return malformed(path, "it has another format");
  }
  const uint64_t version = reader.number(root, "version", UINT64_MAX);
  if (!reader.bad().empty()) return malformed(path, "'version' is missing or wrong");
  if (version == kVersion) return {};
  return Error{ErrorCode::kUnsupported,
               path + " is a bundle of version " + std::to_string(version) +
                   ", and this djinn reads version " + std::to_string(kVersion) +
                   ". Export the model again with the djinn that is to run it."};
}

Status open_files(Reader& reader, const Json& root, const std::string& directory, Bundle& bundle) {
  for (const Json& one : reader.list(root, "files", limits::kModelFiles)) {
    const std::string name = reader.text_of(&one, "files");
    if (name.empty() || name.find('\0') != std::string::npos) {
      reader.fail("files", 0);
      return {};
    }
    bundle.paths.push_back((std::filesystem::path(directory) / name).string());
    auto file = open_regular_file(bundle.paths.back());
    if (!file) {
      return Error{file.error().code,
                   file.error().message + " " + path_of(directory) +
                       " says that the model's weights are there. Put them back, or export the "
                       "model again."};
    }
    bundle.files.push_back(*std::move(file));
  }
  if (bundle.files.empty()) reader.fail("files", 0);
  return {};
}

// The programs are of that configuration; weights may be moved without it.
Status check_config(Reader& reader, const Json& root, const Bundle& bundle) {
  const std::string then = reader.text(root, "config");
  const std::filesystem::path home = std::filesystem::path(bundle.paths.front()).parent_path();
  const std::string path = (home / "config.json").string();
  std::error_code ignored;
  if (then.empty() || !std::filesystem::exists(path, ignored)) return {};
  DJINN_TRY(const std::string now, read_regular_file(path, kBytesMax));
  if (now == then) return {};
  return Error{ErrorCode::kFileChanged,
               path +
                   " has changed since the model was exported. Export it again: python3 -m "
                   "djinn export MODEL DIR."};
}

}  // namespace

bool is_bundle(const std::string& directory) {
  std::error_code ignored;  // what cannot be looked at is not there; a link that leads nowhere is
  return std::filesystem::exists(std::filesystem::symlink_status(path_of(directory), ignored));
}

Result<Bundle> read_bundle(const std::string& directory) {
  const std::string path = path_of(directory);
  DJINN_TRY(const std::string text, read_regular_file(path, kBytesMax));
  const Json root = parse_json(text);
  Reader reader;
  DJINN_CHECK(check_version(reader, root, path));
  Bundle bundle;
  bundle.label = reader.text(root, "label");
  if (has_control_characters(bundle.label)) reader.fail("label", 0);
  DJINN_CHECK(open_files(reader, root, directory, bundle));
  if (reader.bad().empty()) DJINN_CHECK(check_config(reader, root, bundle));
  bundle.is_stored_so = reader.flag(root, "as_stored");
  for (const Json& one : reader.list(root, "weights", SIZE_MAX)) {
    if (!reader.bad().empty()) break;
    bundle.weights.destinations.push_back(read_weight(reader, one, bundle.files.size()));
  }
  read_sizes(reader, root, bundle);
  DJINN_CHECK(read_programs(reader, root, bundle, path));
  if (reader.bad().empty()) return bundle;
  return malformed(path, "'" + reader.bad() + "' is missing or wrong");
}

Status check_tensors(const Bundle& bundle, const srg::ModelManifest& manifest) {
  for (const srg::Destination& wanted : bundle.weights.destinations) {
    const srg::TensorEntry* const tensor = find_tensor(manifest, wanted.name);
    const bool is_same =
        tensor != nullptr && tensor->dtype == wanted.dtype && tensor->sizes == wanted.sizes;
    if (is_same) continue;
    return Error{ErrorCode::kFileChanged,
                 "The model's files have changed since it was exported: the tensor '" +
                     wanted.name +
                     (tensor == nullptr ? "' is gone" : "' has another dtype or other sizes") +
                     ". Export the model again: python3 -m djinn export MODEL DIR."};
  }
  return {};
}

std::vector<int> WeightFiles::numbers() const {
  std::vector<int> numbers;
  for (const Fd& file : files) numbers.push_back(file.get());
  return numbers;
}

Result<WeightFiles> open_weight_files(const std::string& directory) {
  WeightFiles found;
  if (!is_bundle(directory)) {
    DJINN_TRY(ModelDirectory model, open_model_directory(directory));
    found.label = std::move(model.label);
    found.paths = std::move(model.paths);
    found.files = std::move(model.files);
    return found;
  }
  DJINN_TRY(Bundle bundle, read_bundle(directory));
  if (!bundle.is_stored_so) found.plan = std::move(bundle.weights);
  found.label = std::move(bundle.label);
  found.paths = std::move(bundle.paths);
  found.files = std::move(bundle.files);
  return found;
}

}  // namespace djinn::client

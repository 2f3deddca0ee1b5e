// SPDX-License-Identifier: Apache-2.0

#include "python/binding/session.h"

#include <set>

#include "kernel/base/file.h"
#include "kernel/srg/text.h"
#include "libdjinn-client/models/bundle.h"
#include "libdjinn-client/operations.h"
#include "libdjinn-client/run_builder.h"
#include "libdjinn-client/transfer.h"

namespace djinn::python {
namespace {

Result<std::vector<Fd>> open_all(const std::vector<std::string>& paths) {
  std::vector<Fd> out;
  for (const std::string& path : paths) {
    DJINN_TRY(Fd file, open_regular_file(path));
    out.push_back(std::move(file));
  }
  return out;
}

std::vector<int> numbers_of(const std::vector<Fd>& files) {
  std::vector<int> out;
  for (const Fd& file : files) out.push_back(file.get());
  return out;
}

// Puts a run together: a RunBuilder, and the refs that the run makes.
class Call {
 public:
  Call(client::Client& client, const Program& program)
      : client_(client), program_(program), builder_(client, *program.graph) {}

  Status bind(const RunArguments& arguments) {
    const SequenceHandle sequence = arguments.sequence.handle;
    if (sequence.valid()) builder_.sequence(sequence);
    for (size_t i = 0; i < arguments.symbols.size(); ++i) {
      builder_.symbol(program_.graph->symbols[i].name, arguments.symbols[i]);
    }
    for (const auto& [name, input] : arguments.inputs) DJINN_CHECK(bind_input(name, input));
    refs_.resize(arguments.outputs.size());
    for (size_t i = 0; i < arguments.outputs.size(); ++i) {
      DJINN_CHECK(bind_output(i, arguments.outputs[i]));
    }
    return {};
  }

  Status run() {
    return program_.id.valid() ? builder_.run(program_.id) : builder_.run_once(program_.model);
  }

  [[nodiscard]] std::vector<RunOutput> take(uint64_t session) {
    std::vector<RunOutput> out;
    for (size_t i = 0; i < refs_.size(); ++i) {
      out.push_back({builder_.description(i),
                     builder_.take_output(i),
                     {std::move(refs_[i]).detach(), session}});
    }
    return out;
  }

 private:
  Status bind_input(const std::string& name, const Input& input) {
    if (const auto* bytes = std::get_if<std::span<const std::byte>>(&input)) {
      return builder_.input(name, *bytes);
    }
    return builder_.input_ref(name, std::get<Held<RefHandle>>(input).handle);
  }

  Status bind_output(size_t index, const Output& output) {
    if (output.kind == Output::Kind::kStaging) return builder_.output(index, output.bytes);
    if (output.kind == Output::Kind::kNone) return {};
    DJINN_TRY(refs_[index], client_.new_ref());
    builder_.output_ref(index, refs_[index].ref());
    return {};
  }

  client::Client& client_;
  const Program& program_;
  client::RunBuilder builder_;
  std::vector<client::RefLease> refs_;
};

Result<std::vector<RunOutput>> run_call(client::Client& client, uint64_t session,
                                        const Program& program, const RunArguments& arguments) {
  Call call(client, program);
  DJINN_CHECK(call.bind(arguments));
  DJINN_CHECK(call.run());
  return call.take(session);
}

// Gives the numbers of the sessions whose objects the run names.
std::set<uint64_t> sessions_of(const Program& program, const RunArguments& arguments) {
  std::set<uint64_t> out{program.session, arguments.sequence.session};
  for (const auto& [name, input] : arguments.inputs) {
    if (const auto* ref = std::get_if<Held<RefHandle>>(&input)) out.insert(ref->session);
  }
  out.erase(0);
  return out;
}

}  // namespace

bool Interruption::operator()() {
  if (closed_ || raised_) return true;
  const py::gil_scoped_acquire gil;
  const pid_t before = ::getpid();
  // A handler may have forked, and the child's wait would take its parent's answer.
  if (PyErr_CheckSignals() == 0) return ::getpid() != before;
  raised_ = std::make_exception_ptr(py::error_already_set());
  return true;
}

void Interruption::raise_again() const {
  if (raised_) std::rethrow_exception(raised_);
}

Session::Session(client::ConnectOptions options, std::optional<uint64_t> reconnect_wait_ms)
    : connection_(std::make_unique<client::Connection>(interruptible(std::move(options)),
                                                       reconnect_wait_ms)) {
  python::take(turn([](client::Client&) { return Status(); }));
}

client::ConnectOptions Session::interruptible(client::ConnectOptions options) {
  options.interrupt = &interrupt_;
  return options;
}

void Session::refuse_reentry() const {
  if (owner_.load() == std::this_thread::get_id()) {
    raise({ErrorCode::kBusy,
           "A token callback or signal handler cannot use the session that it interrupts. Return "
           "False from the callback to end the generation."});
  }
}

ipc::Welcome Session::welcome() const {
  const std::lock_guard lock(small_mutex_);
  return welcome_;
}

void Session::learn(const client::Client& client) {
  const std::lock_guard lock(small_mutex_);
  welcome_ = client.welcome();
}

void Session::close() {
  refuse_reentry();
  closed_ = true;
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  connection_.reset();
}

void Session::reconnect(uint64_t wait_ms) {
  const auto connect = [wait_ms](
                           client::Connection& connection,
                           const client::CancelPredicate& given_up) -> Result<client::Client*> {
    DJINN_CHECK(connection.reconnect(wait_ms, given_up));
    return connection.of(connection.session());
  };
  python::take(take_turn(connect, [](client::Client&) { return Status(); }));
}

void Session::after_fork() {
  new (&small_mutex_) std::mutex;
  // A token callback or a signal handler has forked. The turn that it interrupted goes on in the
  // child, is told at its next step that the session is gone, and releases its lock.
  if (owner_.load() == std::this_thread::get_id()) return;
  owner_ = std::thread::id();
  interrupt_.forget_call();
  if (mutex_.try_lock()) {
    // The child's copy of the socket must not keep the lease alive.
    if (connection_ != nullptr) [[maybe_unused]]
      const Status ended = connection_->check();
    mutex_.unlock();
    return;
  }
  new (&mutex_) std::mutex;
  if (connection_ != nullptr) connection_->abandon();
}

OpenedModel Session::open_directory(const std::string& path, const srg::LoadPlan* plan,
                                    const client::Retention& retention) {
  return python::take(turn([&](client::Client& client) -> Result<OpenedModel> {
    DJINN_TRY(const client::WeightFiles directory, client::open_weight_files(path));
    const std::vector<int> numbers = directory.numbers();
    DJINN_TRY(auto opened,
              client.open_model({directory.label, numbers, directory.paths},
                                plan != nullptr ? plan : directory.plan_or_null(), retention));
    return OpenedModel{std::move(opened), number()};
  }));
}

OpenedModel Session::open_files(const std::string& label, const std::vector<std::string>& paths,
                                const srg::LoadPlan* plan, const client::Retention& retention) {
  return python::take(turn([&](client::Client& client) -> Result<OpenedModel> {
    DJINN_TRY(const std::vector<Fd> files, open_all(paths));
    const std::vector<int> numbers = numbers_of(files);
    DJINN_TRY(auto opened, client.open_model({label, numbers, paths}, plan, retention));
    return OpenedModel{std::move(opened), number()};
  }));
}

Program Session::define(const std::string& text, ModelId model, uint64_t session) {
  Program program{parse_graph(text), session, {}, model, {}};
  client::LeasedProgram leased = python::take(turn_of(session, [&](client::Client& client) {
    program.session = number();
    return client.lease_program(*program.graph, model);
  }));
  program.id = leased.defined.program;
  program.outputs = std::move(leased.defined.outputs);
  program.lease = std::make_shared<const client::ProgramLease>(std::move(leased.lease));
  return program;
}

std::vector<RunOutput> Session::run(const Program& program, const RunArguments& arguments) {
  const std::set<uint64_t> sessions = sessions_of(program, arguments);
  const uint64_t session =
      sessions.empty() ? 0 : *sessions.begin();  // if there are two, one is gone
  return python::take(
      turn_of(session, [&](client::Client& client) -> Result<std::vector<RunOutput>> {
        DJINN_CHECK(release_garbage(client));
        return run_call(client, number(), program, arguments);
      }));
}

// --- refs

Held<RefHandle> Session::put(std::span<const std::byte> bytes) {
  return python::take(turn([&](client::Client& client) -> Result<Held<RefHandle>> {
    DJINN_CHECK(release_garbage(client));
    DJINN_TRY(auto ref, client::put(client, bytes));
    return Held<RefHandle>{std::move(ref).detach(), number()};
  }));
}

void Session::read(uint64_t session, const ipc::ReadBlock& view, std::span<std::byte> out) {
  python::take(
      turn_of(session, [&](client::Client& client) { return client::read(client, view, out); }));
}

void Session::release(const Held<RefHandle>& ref) {
  give_back(ref.session, [&](client::Client& client) {
    return client::release(client, std::span(&ref.handle, 1));
  });
}

void Session::crop(uint64_t session, const ipc::CropBlock& block) {
  python::take(
      turn_of(session, [&](client::Client& client) { return client::crop(client, block); }));
}

void Session::reorder(uint64_t session, const ipc::ReorderBlock& block) {
  python::take(
      turn_of(session, [&](client::Client& client) { return client::reorder(client, block); }));
}

void Session::release_later(const Held<RefHandle>& ref) {
  const std::lock_guard lock(small_mutex_);
  garbage_.push_back(ref);
}

Status Session::release_garbage(client::Client& client) {
  std::vector<RefHandle> garbage;
  {
    const std::lock_guard lock(small_mutex_);
    for (const Held<RefHandle>& ref : garbage_) {
      if (ref.session == number()) garbage.push_back(ref.handle);
    }
    garbage_.clear();
  }
  return client::release(client, garbage);
}

std::shared_ptr<const srg::Graph> parse_graph(const std::string& text) {
  return std::make_shared<const srg::Graph>(python::take(srg::parse_text(text)));
}

}  // namespace djinn::python

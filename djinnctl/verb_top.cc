// SPDX-License-Identifier: Apache-2.0

// djinnctl top shows a live view of the sessions. The key s chooses the next order, q ends it, and
// any other makes a new look. In batch mode, and on a terminal without escape codes, one view
// follows the other.
#include <fmt/format.h>
#include <unistd.h>

#include <thread>

#include "djinnctl/command_line.h"
#include "djinnctl/others.h"
#include "djinnctl/screen.h"
#include "djinnctl/text.h"
#include "djinnctl/top.h"
#include "djinnctl/uses.h"

namespace djinn::ctl {
namespace {

struct TopOptions {
  bool batch = false;
  std::string delay = "2s";
  uint32_t count = 0;  // views; 0: without end
  std::string sort = "memory";
};

std::chrono::milliseconds delay_of(const TopOptions& options) {
  return std::chrono::milliseconds(wait_ms_of(options.delay).value());
}

Result<TopSample> look(client::Client& client) {
  TopSample sample;
  DJINN_TRY(sample.status, status_without_us(client));
  DJINN_TRY(sample.sessions, other_sessions(client));
  DJINN_TRY(sample.models, client.models());
  sample.wall_ns = now_ns();
  return sample;
}

Status print_view(const Invocation& invocation, client::Client& client, const TopSample& now,
                  const TopSample* before, TopSort sort) {
  if (!invocation.wants_json()) {
    const Table::Layout layout{.isolates = invocation.layout.isolates,
                               .columns_max = invocation.layout.columns_max};
    return write_out((before != nullptr ? "\n" : "") + top_frame(now, before, sort, layout));
  }
  Json item = to_json(now.status);
  item["time"] = time_text(now.wall_ns);
  DJINN_TRY(item["sessions_list"], session_items(client, now.sessions));
  return print_json(invocation, "top", {std::move(item)});
}

Status run_batch(const Invocation& invocation, client::Client& client, const TopOptions& options) {
  const TopSort sort = *top_sort_named(options.sort);
  const auto delay = delay_of(options);
  std::optional<TopSample> before;
  for (uint32_t view = 0; options.count == 0 || view < options.count; ++view) {
    if (view > 0) std::this_thread::sleep_for(delay);
    DJINN_TRY(TopSample now, look(client));
    DJINN_CHECK(print_view(invocation, client, now, before ? &*before : nullptr, sort));
    before = std::move(now);
  }
  return {};
}

Status run_live(client::Client& client, const TopOptions& options) {
  DJINN_TRY(const Screen screen, Screen::open());
  const auto delay = delay_of(options);
  TopSort sort = *top_sort_named(options.sort);
  std::optional<TopSample> before;
  for (uint32_t view = 0; options.count == 0 || view < options.count; ++view) {
    DJINN_TRY(TopSample now, look(client));
    const std::string help = fmt::format("by {}; s: another order, q: quit\n", name_of(sort));
    const Table::Layout layout{.isolates = true, .columns_max = screen.size().columns};
    DJINN_CHECK(
        screen.show(top_frame(now, before ? &*before : nullptr, sort, layout) + '\n' + help));
    before = std::move(now);
    const auto key = screen.key(static_cast<int>(delay.count()));
    if (key == 'q') return {};
    if (key == 's') sort = next(sort);
  }
  return {};
}

Status top(const Invocation& invocation, const TopOptions& options) {
  DJINN_TRY(const auto client, observe(invocation));
  const Terminal out = terminal_of(STDOUT_FILENO);
  const bool live = !options.batch && !invocation.wants_json() && out.takes_escapes;
  if (live) return run_live(*client, options);
  TopOptions batch = options;
  const bool watched = options.batch || (out.is_terminal && !invocation.wants_json());
  if (!watched && options.count == 0) batch.count = 1;
  return run_batch(invocation, *client, batch);
}

}  // namespace

void add_top(CommandLine& line) {
  const Verb verb = line.verb("top", "a live view of the sessions");
  auto options = std::make_shared<TopOptions>();
  verb.flag("-b,--batch", options->batch, "one view after the other, for files and pipes");
  verb.option("-n,--count", options->count, "so many views [without end]")
      .called("COUNT")
      .between(uint32_t{1}, UINT32_MAX);
  verb.option("-d,--delay", options->delay, "time between views; a number alone: seconds [2s]")
      .called("TIME")
      .checked([](const std::string& text) { return wait_fault(text, "100ms", "1h"); });
  verb.option("--sort", options->sort, "order: memory, rate, age or user [memory]")
      .called("ORDER")
      .one_of({"memory", "rate", "age", "user"});
  verb.does(options, top);
}

}  // namespace djinn::ctl

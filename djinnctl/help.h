// SPDX-License-Identifier: Apache-2.0

// Help: how --help looks: an option as the manual writes it, with one word for its value.
#pragma once

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace djinn::ctl {

[[nodiscard]] std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace djinn::ctl

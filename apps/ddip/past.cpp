#include "past.h"

#include <fmt/format.h>

#include <algorithm>

#include "ddip/client/group_folder.h"
#include "ddip/coordinator/journal.h"
#include "style.h"

namespace ddip::app {
namespace fs = std::filesystem;

namespace {
constexpr std::string_view kStops = "the group stops: ";  // the coordinator's last note
}

std::optional<Past> read_past(const fs::path& state, const std::string& name) {
  const fs::path folder = client::newest_journal(state, name);
  if (folder.empty()) return std::nullopt;
  Past past;
  coordinator::read_journal(folder, 0, [&](const coordinator::Record& record) {
    using coordinator::RecordKind;
    if (record.time_us > 0) past.last = static_cast<double>(record.time_us) * 1e-6;
    if (record.kind == RecordKind::output) {
      past.lines += static_cast<size_t>(std::count(record.body.begin(), record.body.end(), '\n'));
    }
    if (record.kind == RecordKind::note && record.body.starts_with(kStops))
      past.stopped = record.body.substr(kStops.size());
    return true;
  });
  return past;
}

std::string describe(const Past& past, const std::string& name) {
  const std::string when = past.last > 0 ? " at " + moment(past.last) : "";
  const std::string kept = fmt::format("{} kept (ddip log {})", counted(past.lines, "line"), name);
  if (past.stopped.empty()) return fmt::format("group {} was lost{}, {}", name, when, kept);
  return fmt::format("group {} stopped{} ({}), {}", name, when, past.stopped, kept);
}

std::vector<std::string> groups_with_journal(const fs::path& state) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(state, error)) {
    if (!client::newest_journal(state, entry.path().filename()).empty()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ddip::app

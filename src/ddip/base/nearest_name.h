// "Did you mean": the valid name a mistyped one most resembles.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddip {

// Inserted, missing, changed and swapped neighbouring letters between two words (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The candidate that begins with `name` if exactly one does, else the closest one within a third of its letters.
// Nothing near: nullopt. Of equally close candidates the first wins, so the answer does not depend on chance.
std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean X?" or "": ready to be appended to a message.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace ddip

// What a group is called when nobody names it: stable for a notebook, one of a kind for a script's process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddip::launch {

// FNV-1a, 64 bits: the same on every machine and in every version, so a notebook finds its group again.
std::uint64_t fnv1a_64(std::string_view bytes);

// "/home/a/My model.ipynb" -> "My-model-" + the first 6 hex digits of the whole path's hash; at most 32 characters.
// Two notebooks of one file name in different folders get different groups.
std::string notebook_group_name(std::string_view path);

// "tools/train.py", 4711 -> "train-4711"; at most 32 characters. No script (python -c): "python-4711".
std::string script_group_name(std::string_view script, std::int64_t pid);

}  // namespace ddip::launch

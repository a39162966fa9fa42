#include "data.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ddip/base/error.h"

namespace ddip::app {

using launch::Takes;

launch::FlagTable data_flags() {
  return {"ddip data",
          "make synthetic detector events (synth), draw one (view), change their format (convert)",
          "synth --out DIR --events N | view DIR --out FILE.png [--index I] | convert SRC DST",
          {{"synth and view", {{"--out", "", Takes::Value, "PATH", "the folder to write (synth), the picture (view)"}}},
           {"synth",
            {{"--events", "", Takes::Value, "N", "how many"},
             {"--size", "", Takes::Value, "PIXELS", "of one side (default 256)"},
             {"--seed", "", Takes::Value, "S", "the same seed gives the same events (default 0)"}}},
           {"synth and convert",
            {{"--format", "", Takes::Value, "npy|parquet",
              "images.npy and labels.npy, or events.parquet (synth: default npy; convert: the other one)"}}},
           {"view", {{"--index", "", Takes::Value, "I", "which event (default 0)"}}}},
          {"ddip data synth --out events --events 1000 --seed 7", "ddip data view events --index 3 --out event.png",
           "ddip data convert events events-parquet", "# SRC may also be a .parquet file"}};
}

namespace {

struct Part {
  size_t words;  // behind the part's own name
  std::string expected;
  std::vector<std::string> flags;
};

const std::map<std::string, Part>& parts() {
  static const std::map<std::string, Part> table = {
      {"synth", {0, "", {"--out", "--events", "--size", "--seed", "--format"}}},
      {"view", {1, "the folder that synth wrote, or a .parquet file", {"--out", "--index"}}},
      {"convert", {2, "where the events are and the folder to write", {"--format"}}}};
  return table;
}

void check(const std::string& what, const launch::Flags& flags) {
  const Part& part = parts().at(what);
  for (const launch::FlagSection& section : data_flags().sections) {
    for (const launch::Flag& flag : section.flags) {
      const bool belongs = std::find(part.flags.begin(), part.flags.end(), flag.long_name) != part.flags.end();
      if (!belongs && flags.has(flag.long_name))
        throw ConfigError(fmt::format("ddip data {} {}: this flag does not belong to {}", what, flag.long_name, what));
    }
  }
  const auto& words = flags.words();
  if (words.size() > part.words + 1)
    throw ConfigError(fmt::format("ddip data {}: one word too many: {}", what, launch::shown(words[part.words + 1])));
  if (words.size() < part.words + 1) throw ConfigError(fmt::format("ddip data {}: expected {}", what, part.expected));
}

}  // namespace

launch::FlagText needed(const launch::Flags& flags, const std::string& what, const std::string& flag) {
  if (!flags.has(flag))
    throw ConfigError(fmt::format("ddip data {}: expected {}; ddip data -h lists the flags", what, flag));
  return flags.value(flag);
}

data::EventFormat event_format(const launch::FlagText& flag) {
  launch::one_of(flag, {"npy", "parquet"});
  return flag.text == "npy" ? data::EventFormat::npy : data::EventFormat::parquet;
}

Count::~Count() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

void Count::done(uint64_t events) {
  if (!shown_ || events % 50 != 0 || std::chrono::steady_clock::now() - begun_ < std::chrono::seconds(1)) return;
  fmt::print(stderr, "\r{} of {} events", events, whole_);
  drawn_ = true;
}

int data(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(data_flags(), arguments);
  const auto& words = flags.words();
  if (words.empty()) throw ConfigError("ddip data: expected synth, view or convert; ddip data -h lists the flags");
  const std::string& what = words[0];
  launch::one_of({"ddip data " + launch::shown(what), what}, {"synth", "view", "convert"});
  check(what, flags);
  if (what == "synth") return data_synth(context, flags);
  if (what == "view") return data_view(flags, words[1]);
  return data_convert(context, flags, words[1], words[2]);
}

}  // namespace ddip::app

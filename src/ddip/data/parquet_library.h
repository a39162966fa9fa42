// Parquet, through a library of ours that is loaded when it is first needed: it stands on Arrow's, which comes with the
// pyarrow wheel and which nothing else may depend on.
#pragma once

#include "ddip/data/event_set.h"

namespace ddip::data {

struct ParquetLibrary {
  std::unique_ptr<EventSet> (*open)(const std::filesystem::path& file, Labels labels);
  std::unique_ptr<EventWriter> (*create)(const std::filesystem::path& file, const EventShape& shape);
};

// What libddip_parquet.so exports.
using GetParquetLibrary = const ParquetLibrary* (*)();
constexpr const char* kGetParquetLibrary = "ddip_parquet_library";

// Throws ConfigError where it is not there, or Arrow's is not: the first line of what to do.
const ParquetLibrary& parquet_library();

}  // namespace ddip::data

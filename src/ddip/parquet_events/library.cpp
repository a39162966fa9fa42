// What data/parquet_library.h loads.
#include "ddip/data/parquet_library.h"
#include "ddip/parquet_events/reader.h"
#include "ddip/parquet_events/writer.h"

extern "C" __attribute__((visibility("default"))) const ddip::data::ParquetLibrary* ddip_parquet_library() {
  static const ddip::data::ParquetLibrary library = {
      [](const std::filesystem::path& file, ddip::data::Labels labels) -> std::unique_ptr<ddip::data::EventSet> {
        return std::make_unique<ddip::parquet_events::ParquetEvents>(file, labels);
      },
      [](const std::filesystem::path& file,
         const ddip::data::EventShape& shape) -> std::unique_ptr<ddip::data::EventWriter> {
        return std::make_unique<ddip::parquet_events::ParquetWriter>(file, shape);
      }};
  return &library;
}

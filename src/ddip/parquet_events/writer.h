// The Parquet file that reader.h reads, and that pyarrow shows as two columns of lists.
#pragma once

#include <parquet/file_writer.h>

#include <vector>

#include "ddip/data/event_set.h"

namespace ddip::parquet_events {

class ParquetWriter : public data::EventWriter {
 public:
  ParquetWriter(const std::filesystem::path& path, const data::EventShape& shape);

  void write(std::span<const float> image, std::span<const uint8_t> labels) override;
  void close() override;

 private:
  class File;

  void flush();

  const data::EventShape shape_;
  std::shared_ptr<File> file_;
  std::unique_ptr<::parquet::ParquetFileWriter> writer_;
  std::vector<float> images_;  // of the row group to come
  std::vector<int32_t> labels_;
};

}  // namespace ddip::parquet_events

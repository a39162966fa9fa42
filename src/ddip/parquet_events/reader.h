// Events of a Parquet file: a column `image` of lists of float, a column `label` of lists of small whole numbers, both
// row by row from the top left. How wide an image is stands in the file's metadata under kShapeKey ("1,256,256":
// channels, height, width); where it does not, images are square.
#pragma once

#include <parquet/file_reader.h>

#include <list>
#include <mutex>
#include <vector>

#include "ddip/data/event_set.h"

namespace ddip::parquet_events {

constexpr const char* kImageColumn = "image";
constexpr const char* kLabelColumn = "label";
constexpr const char* kShapeKey = "ddip.shape";

class ParquetEvents : public data::EventSet {
 public:
  // Throws ConfigError: one line with the file's name and what is wrong with it. Rows are checked when they are read.
  ParquetEvents(std::filesystem::path path, data::Labels labels);

  const data::EventShape& shape() const override { return shape_; }
  bool has_labels() const override { return label_column_ >= 0; }
  std::string name_of(uint64_t event) const override;
  void read(uint64_t event, float* image, uint8_t* labels) const override;

 private:
  // A row group is decoded as a whole, so the last ones are kept: shuffled reading comes back to them.
  struct Group {
    int number = 0;
    std::vector<float> images;
    std::vector<uint8_t> labels;
  };

  void check_columns(data::Labels labels);
  void find_shape();
  void count_events();
  Group decode(int number) const;

  const std::filesystem::path path_;
  std::unique_ptr<::parquet::ParquetFileReader> file_;
  int image_column_ = -1;
  int label_column_ = -1;
  data::EventShape shape_;
  std::vector<uint64_t> begins_;  // of each row group's events, and the end of the last
  mutable std::mutex mutex_;      // guards the next, and file_'s use
  mutable std::list<Group> recent_;
};

}  // namespace ddip::parquet_events

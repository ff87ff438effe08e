#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "element.h"
#include "frame.h"

// Before a loop over rows: a GPU thread waits for the loads of several rows together.
#if defined(__CUDA_ARCH__)
#define MILLRACE_UNROLL_ROWS _Pragma("unroll 4")
#define MILLRACE_UNROLL_ALL _Pragma("unroll")  // so that an array that the loop indexes may lie in registers
#else
#define MILLRACE_UNROLL_ROWS
#define MILLRACE_UNROLL_ALL
#endif

namespace millrace::kernels {

// Where the rows of a matrix (pixels or tokens x channels) go in a grid (splits, tiles, images): a thread owns a column
// of `width` neighbouring channels and goes through the rows of its split in steps of `row_step`, so that a block reads
// whole runs of memory.
struct Columns {
  static constexpr int threads = 256;

  std::int64_t rows, rows_per_split;
  int channels, columns_per_tile, row_step;
  unsigned splits, tiles;

  struct Place {
    std::int64_t first, last;  // rows; none for a thread without a column
    int channel;
  };
  template <int width>
  MILLRACE_HOST_DEVICE Place place(unsigned split, unsigned tile, int thread) const {
    const int channel = (static_cast<int>(tile) * columns_per_tile + thread % columns_per_tile) * width;
    const int row = thread / columns_per_tile;
    const std::int64_t begin = split * rows_per_split;
    const std::int64_t end = begin + rows_per_split < rows ? begin + rows_per_split : rows;
    const bool is_idle = row >= row_step || channel >= channels;
    return {begin + row, is_idle ? begin : end, channel};
  }
};

inline constexpr int rows_in_flight = 2;  // whose loads a thread waits for together

// use(row, load_row(row)) for the rows of a place. The loads of several rows come before the first use, which a
// compiler cannot do by itself where `use` writes: it does not know that it writes elsewhere.
template <class LoadRow, class Use>
MILLRACE_HOST_DEVICE void through_rows(const Columns::Place& place, int row_step, const LoadRow& load_row,
                                       const Use& use) {
  for (std::int64_t row = place.first; row < place.last; row += rows_in_flight * row_step) {
    decltype(load_row(row)) loaded[rows_in_flight];
    MILLRACE_UNROLL_ALL
    for (int k = 0; k < rows_in_flight; ++k)
      if (row + k * row_step < place.last) loaded[k] = load_row(row + k * row_step);
    MILLRACE_UNROLL_ALL
    for (int k = 0; k < rows_in_flight; ++k)
      if (row + k * row_step < place.last) use(row + k * row_step, loaded[k]);
  }
}

// `blocks`: how many are wanted, so that a GPU has enough to do. It does not depend on the GPU, so that sums do not
// either.
inline Columns plan_columns(std::int64_t rows, std::int64_t channels, int width, std::int64_t images,
                            std::int64_t blocks) {
  constexpr std::int64_t most_columns = 128, least_rows = 4;  // of a tile; of a thread
  const std::int64_t columns = channels / width;
  const std::int64_t tiles = (columns + most_columns - 1) / most_columns;
  const std::int64_t per_tile = (columns + tiles - 1) / tiles, row_step = Columns::threads / per_tile;
  const std::int64_t most_splits = std::max<std::int64_t>(1, rows / (least_rows * row_step));
  const std::int64_t wanted = std::clamp<std::int64_t>(blocks / (tiles * images), 1, most_splits);
  const std::int64_t rows_per_split = (rows + wanted - 1) / wanted;
  return {rows,
          rows_per_split,
          static_cast<int>(channels),
          static_cast<int>(per_tile),
          static_cast<int>(row_step),
          static_cast<unsigned>((rows + rows_per_split - 1) / rows_per_split),
          static_cast<unsigned>(tiles)};
}
inline constexpr std::int64_t blocks_of_sums = 1024, blocks_of_maps = 4096;

// 16 bytes at a time where channels and addresses allow it, else one element.
template <class T>
constexpr int full_width = 16 / sizeof(T);

// function(T{}, width) with the type of `element` and the widest access that the channels and all addresses allow.
template <class Function>
void with_type_and_width(Element element, std::int64_t channels, std::initializer_list<const void*> addresses,
                         const Function& function) {
  with_type(element, [&](auto zero) {
    constexpr int width = full_width<decltype(zero)>;
    if (channels % width == 0 && std::all_of(addresses.begin(), addresses.end(), is_aligned)) {
      function(zero, std::integral_constant<int, width>{});
    } else {
      function(zero, std::integral_constant<int, 1>{});
    }
  });
}

// Of sums, whichever width is chosen.
inline std::int64_t most_splits(std::int64_t rows, std::int64_t channels, std::int64_t images = 1,
                                std::int64_t blocks = blocks_of_sums) {
  std::int64_t most = 0;
  for (const int width : {1, 4, 8})
    if (channels % width == 0)
      most = std::max<std::int64_t>(most, plan_columns(rows, channels, width, images, blocks).splits);
  return most;
}

inline Grid grid_of(const Columns& columns, std::int64_t images = 1) {
  return {columns.splits, columns.tiles, static_cast<unsigned>(images)};
}

inline constexpr int banks = 32;  // of a GPU's shared memory, four bytes wide each

// Sums of `count` quantities per channel over the rows of a block: each thread leaves its own, then `finish` hands each
// channel's sums, added up in a fixed order, to write(channel, sums).
template <int count, int width>
struct ColumnSums {
  // `finish` reads the `width` channels of a column side by side: the padding puts them in different banks.
  static constexpr int padding = width == 1 ? 0 : banks / width;
  float sums[count][width][Columns::threads + padding];

  MILLRACE_HOST_DEVICE void leave(int thread, const float (&own)[count][width]) {
    for (int k = 0; k < count; ++k)
      for (int i = 0; i < width; ++i) sums[k][i][thread] = own[k][i];
  }

  template <class Block, class Write>
  MILLRACE_HOST_DEVICE void finish(Block& block, const Columns& columns, const Write& write) {
    block.phase([&](int thread) {
      for (int at = thread; at < columns.columns_per_tile * width; at += Columns::threads) {
        const int column = at / width, i = at % width;
        const int channel = static_cast<int>(block.y) * columns.columns_per_tile * width + at;
        if (channel >= columns.channels) break;
        float total[count] = {};
        for (int row = 0; row < columns.row_step; ++row)
          for (int k = 0; k < count; ++k) total[k] += sums[k][i][row * columns.columns_per_tile + column];
        write(channel, total);
      }
    });
  }
};

// A matrix (count, C) of partial sums, and what the sums of its columns become; data null: not wanted.
struct PartialRows {
  const float* rows;
  Target sums;
};

// The sums over the rows of a few matrices, in an order that is always the same: a block goes through the rows of
// 8 neighbouring channels, a sector of memory, 64 at a time. Grid (C / 8, matrices).
struct SumOfRows {
  static constexpr int threads = 512, channels_of_block = 8, rows_at_once = threads / channels_of_block;
  static constexpr int most_matrices = 3;
  struct Shared {
    float sums[threads];
  };
  PartialRows matrices[most_matrices];
  std::int64_t count;
  int channels;

  template <class Block>
  MILLRACE_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const PartialRows& matrix = matrices[block.y];
    const int first_channel = static_cast<int>(block.x) * channels_of_block;
    block.phase([&](int thread) {
      const int channel = first_channel + thread % channels_of_block;
      float sum = 0;
      if (channel < channels) {
        MILLRACE_UNROLL_ROWS
        for (std::int64_t row = thread / channels_of_block; row < count; row += rows_at_once)
          sum += matrix.rows[row * channels + channel];
      }
      shared.sums[thread] = sum;
    });
    fold<channels_of_block>(block, shared.sums);
    block.phase([&](int thread) {
      const int channel = first_channel + thread;
      if (thread < channels_of_block && channel < channels) matrix.sums.write(channel, shared.sums[thread]);
    });
  }
};

template <class Launcher>
void sum_rows(std::initializer_list<PartialRows> matrices, std::int64_t count, std::int64_t channels,
              const Launcher& launch) {
  SumOfRows kernel{{}, count, static_cast<int>(channels)};
  unsigned wanted = 0;
  for (const auto& matrix : matrices)
    if (matrix.sums.data != nullptr) kernel.matrices[wanted++] = matrix;
  constexpr int width = SumOfRows::channels_of_block;
  if (wanted > 0) launch(kernel, {static_cast<unsigned>((channels + width - 1) / width), wanted});
}

}  // namespace millrace::kernels

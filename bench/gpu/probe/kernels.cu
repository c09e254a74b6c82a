// The probe's kernels, built by themselves into a file that it loads.

constexpr int TILE = 16;

// c = a * b, square, the side a multiple of the tile and given by the grid.
extern "C" __global__ void multiply(const float* a, const float* b, float* c) {
  __shared__ float left[TILE][TILE], right[TILE][TILE];
  const int side = gridDim.x * TILE;
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int tile = 0; tile < side; tile += TILE) {
    left[threadIdx.y][threadIdx.x] = a[row * side + tile + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * side + column];
    __syncthreads();
    for (int k = 0; k < TILE; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  c[row * side + column] = sum;
}

// Runs for so long, whatever the clocks are.
extern "C" __global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

extern "C" __global__ void write_one(volatile int* where) { *where = 1; }

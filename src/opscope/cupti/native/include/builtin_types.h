/* Stands for the CUDA runtime's header of this name, which cupti_callbacks.h includes and uses nothing of. The
 * wheels that bring CUPTI come without the headers that the real one needs. */

// The driver's own library, of which torch asks only whether a device is in use: it is.

extern "C" int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
    *flags = 0;
    *is_active = 1;
    return 0;
}

/* A library that a plugin needs, and that is taken away. */
int campanile_test_absent(void);
int campanile_test_absent(void) { return 0; }

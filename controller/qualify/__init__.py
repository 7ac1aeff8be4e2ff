"""Tests of free UltraServers: a workload and pods for each test, its verdict, and what follows from it."""

//go:build !linux

package bench

func residentBytes() int { return 0 }

func pageBytes() int { return 0 }

func descriptors() int { return 0 }

func sharedBytes() (mapped, pages int) { return 0, 0 }

func threads() int { return 0 }

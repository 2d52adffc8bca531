//go:build !linux

package bench

func residentBytes() int { return 0 }

func descriptors() int { return 0 }

func sharedBytes() int { return 0 }

func threads() int { return 0 }

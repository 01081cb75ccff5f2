module k8s.io/externaljwt

go 1.25.0
